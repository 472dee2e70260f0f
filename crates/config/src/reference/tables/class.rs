use super::key::key;
use crate::schema::{Absent, Kind, TableReference};

pub const CLASS: TableReference = TableReference {
    heading: "[[class]]",
    variant: None,
    page: "class",
    summary: "Sources that get more or less than the limits say. The longest matching prefix of `sources` decides. A \
              source in no class's `sources` belongs to the first class with its `asn` or `country`. A source in no \
              class is in the class `default`, with the multiplier 1.",
    keys: &[
        key(
            "name",
            Kind::Text(&["payer"]),
            Absent::Invalid,
            "Unique name, shown by `agent show`. `default` is reserved.",
        ),
        key(
            "sources",
            Kind::List(&Kind::Prefix(&["198.51.100.0/24", "2001:db8:1::/48"])),
            Absent::Described("none; a class requires `sources`, `asn` or `country`"),
            "Addresses and prefixes of the class. A prefix belongs to one class.",
        ),
        key(
            "asn",
            Kind::List(&Kind::Integer(1, 4_294_967_295)),
            Absent::Described("none"),
            "Numbers of autonomous systems whose networks belong to the class. Requires `[geo] asn`.",
        ),
        key(
            "country",
            Kind::List(&Kind::Text(&["XX"])),
            Absent::Described("none"),
            "Countries whose networks belong to the class, as codes of ISO 3166-1. Requires `[geo] country`.",
        ),
        key(
            "multiplier",
            Kind::Number(0.000_001, 1_000_000.0),
            Absent::Value("1"),
            "Factor on every limit's rate and burst. Windows keep their length and multiply their count.",
        ),
        key(
            "unlimited",
            Kind::Boolean,
            Absent::Value("false"),
            "Whether no limit applies to the class. Conflicts with `multiplier`. Bans still apply.",
        ),
    ],
    example: "[[class]]\nname = \"payer\"\nsources = [\"198.51.100.0/24\", \"2001:db8:1::/48\"]\nmultiplier = 5\n\n\
              [agent]\ninterfaces = [\"eth0\"]\n\n[[limit]]\nname = \"packets-per-source\"\nrate = \"1000/s\"\n",
};
