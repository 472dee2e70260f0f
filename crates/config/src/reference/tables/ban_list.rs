use super::key::key;
use crate::reference::{Absent, Kind, TableReference};

pub const BAN_LIST: TableReference = TableReference {
    heading: "[[ban_list]]",
    variant: None,
    page: "ban_list",
    summary: "A list of addresses and prefixes whose incoming packets are refused, from a file, a URL or the databases \
              of `[geo]`. Lists of any length cost a packet the same. `never_limit` and protected addresses take precedence. With `mode = \
              \"observe\"`, lists refuse nothing. With `action = \"class:NAME\"`, the addresses belong to a class instead.",
    keys: &[
        key(
            "name",
            Kind::Text(&["drop"]),
            Absent::Invalid,
            "Unique name, shown by `agent bans` and `agent show`.",
        ),
        key(
            "file",
            Kind::Path(&["/etc/weir/drop.netset"]),
            Absent::Described("none; a list requires `file`, `url`, `asn` or `country`"),
            "The file with the list. Changes take effect at once.",
        ),
        key(
            "url",
            Kind::Text(&["https://lists.example/drop.txt"]),
            Absent::Described("none; a list requires `file`, `url`, `asn` or `country`"),
            "The `https` or `http` URL of the list. A request takes at most 60 s, 128 MiB and 5 redirects. Conflicts \
             with `file`.",
        ),
        key(
            "asn",
            Kind::List(&Kind::Integer(1, 4_294_967_295)),
            Absent::Described("none"),
            "Numbers of autonomous systems whose networks are the list, instead of `file` or `url`. Requires `[geo] \
             asn`. Conflicts with `format` and `every`.",
        ),
        key(
            "country",
            Kind::List(&Kind::Text(&["XX"])),
            Absent::Described("none"),
            "Countries whose networks are the list, as codes of ISO 3166-1, instead of `file` or `url`. Requires \
             `[geo] country`. Conflicts with `format` and `every`.",
        ),
        key(
            "format",
            Kind::Text(&["plain", "netset", "csv:1", "csv:address", "json:cidr"]),
            Absent::Value("\"plain\""),
            "`plain`: an address, a prefix, a range (`192.0.2.1-192.0.2.9`) or an address and a netmask per line; `#` and \
             `;` begin comments. `netset`: the same, with lines of `ipset save`. `csv:COLUMN`: comma-separated values; the \
             column is a number from 1, or a name in the first line that is no comment. `json:FIELD`: JSON, one object a \
             line. A line that is not understood as a whole is invalid.",
        ),
        key(
            "every",
            Kind::Time(&["1h"]),
            Absent::Value("\"1h\""),
            "Interval at which the source is read, 1s to 30day.",
        ),
        key(
            "action",
            Kind::Text(&["ban", "class:partner"]),
            Absent::Value("\"ban\""),
            "`ban`: packets are dropped. `class:NAME`: the prefixes belong to the `[[class]]` with this name, as its \
             `sources` do. Of the same prefix in several classes, `sources` take precedence, then the first list. \
             Exceptions by `agent unban` do not apply. Conflicts with `asn` and `country`, which the class takes itself.",
        ),
        key(
            "allow_shrink",
            Kind::Boolean,
            Absent::Value("false"),
            "Whether the list may shrink by more than half at once. Otherwise such a list is reported and not applied.",
        ),
    ],
    example: "[[ban_list]]\nname = \"drop\"\nfile = \"/etc/weir/drop.netset\"\nformat = \"netset\"\n\n\
              [agent]\ninterfaces = [\"eth0\"]\n\n[[limit]]\nname = \"packets-per-source\"\nrate = \"1000/s\"\n",
};
