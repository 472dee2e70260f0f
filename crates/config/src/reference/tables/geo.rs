use super::key::key;
use crate::schema::{Absent, Kind, TableReference};

pub const GEO: TableReference = TableReference {
    heading: "[geo]",
    variant: None,
    page: "geo",
    summary: "Databases of networks and countries, for `asn` and `country` in `[[class]]` and `[[ban_list]]`. Both are \
              files in MaxMind's format (mmdb), of at most 256 MiB. The agent compiles their prefixes into the policy, so \
              a packet costs the same as with prefixes in limits.toml. Changes of a file take effect within seconds. A \
              file that is missing or damaged changes nothing: the prefixes in effect stay.",
    keys: &[
        key(
            "asn",
            Kind::Path(&["/var/lib/GeoIP/asn.mmdb"]),
            Absent::Described("none; `asn` in a class or ban list requires it"),
            "The file with autonomous systems. Records have `autonomous_system_number` or `asn`.",
        ),
        key(
            "country",
            Kind::Path(&["/var/lib/GeoIP/country.mmdb"]),
            Absent::Described("none; `country` in a class or ban list requires it"),
            "The file with countries. Records have `country.iso_code`, `country_code` or `country`.",
        ),
    ],
    example: "[geo]\nasn = \"/var/lib/GeoIP/asn.mmdb\"\ncountry = \"/var/lib/GeoIP/country.mmdb\"\n\n\
              [[class]]\nname = \"partner\"\nasn = [64500]\nmultiplier = 5\n\n\
              [[ban_list]]\nname = \"region\"\ncountry = [\"XX\"]\n\n\
              [agent]\ninterfaces = [\"eth0\"]\n\n[[limit]]\nname = \"packets-per-source\"\nrate = \"1000/s\"\n",
};
