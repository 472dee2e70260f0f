use super::key::{key, words};
use super::limit::{
    ALGORITHM, CLUSTER, ESCALATE_BAN, ESCALATE_GROW, ESCALATE_MAX, IPV4_PREFIX, IPV6_PREFIX, NAME,
    RATE, SCOPE, TIERS,
};
use crate::escalate::Counts;
use crate::schema::{Absent, Kind, TableReference, Variant};
use crate::units::LARGEST_COUNT;

pub const REQUEST_LIMIT: TableReference = TableReference {
    heading: "[[limit]]",
    variant: Some(Variant {
        condition: "scope = \"request\"",
        others: &[],
        noun: "limits on packets",
    }),
    page: "request-limit",
    summary: "A limit on requests of applications.",
    keys: &[
        NAME,
        SCOPE,
        key(
            "key",
            Kind::List(&Kind::Text(&["user", "path=/login", "source"])),
            Absent::Invalid,
            "Entries of the descriptor that share one allowance, as Envoy names them. `path=/login` matches that value only. \
             `source` (or `remote_address`) is the client's address and gives the request its class.",
        ),
        RATE,
        key(
            "burst",
            Kind::Integer(1, LARGEST_COUNT),
            Absent::Described("the rate's count"),
            "What passes at once after a pause. Only for `token-bucket` and `leaky-bucket`.",
        ),
        key(
            "initial",
            Kind::Integer(0, LARGEST_COUNT),
            Absent::Described("the burst"),
            "What a new key has, at most the burst. Only for `token-bucket` and `leaky-bucket`.",
        ),
        key(
            "refill_every",
            Kind::Time(&["1s"]),
            Absent::Described("continuously"),
            "Refills a bucket in steps of this time.",
        ),
        key(
            "unit",
            Kind::Words(|| vec!["credits", "requests"]),
            Absent::Value("\"requests\""),
            "`requests` counts each request as one unless the caller gives a cost. `credits` counts what `[[request]]` \
             says that it costs.",
        ),
        ALGORITHM,
        key(
            "domain",
            Kind::Text(&["envoy"]),
            Absent::Described("any"),
            "Envoy's domain that the limit is for.",
        ),
        key(
            "replaces",
            Kind::Text(&["requests-per-user"]),
            Absent::Described("none"),
            "Name of a wider limit that is not charged where this one matches.",
        ),
        key(
            "escalate",
            Kind::Table(&[
                key(
                    "after",
                    Kind::Integer(1, Counts::Requests.most()),
                    Absent::Invalid,
                    "Refusals of one client's address.",
                ),
                key(
                    "within",
                    Kind::Time(&["1m"]),
                    Absent::Invalid,
                    "The time in which they happen.",
                ),
                ESCALATE_BAN,
                ESCALATE_GROW,
                ESCALATE_MAX,
            ]),
            Absent::Described("off"),
            "Bans a client's address in the kernel after repeated refusals.",
        ),
        IPV4_PREFIX,
        IPV6_PREFIX,
        key(
            "action",
            Kind::Words(|| vec!["drop", "observe"]),
            Absent::Value("\"drop\""),
            "`drop` refuses requests above the limit, `observe` counts them.",
        ),
        key(
            "on_full",
            words!(OnFull),
            Absent::Value("\"pass\""),
            "What happens to a new key while `max_keys` keys are in use: as for limits on packets.",
        ),
        TIERS,
        CLUSTER,
    ],
    example: "[[limit]]\nname = \"credits-per-user\"\nscope = \"request\"\nkey = [\"user\"]\nunit = \"credits\"\n\
              rate = \"600/min\"\nburst = 100\n",
};
