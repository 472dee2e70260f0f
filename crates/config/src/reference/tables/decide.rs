use super::key::key;
use crate::decide::{MOST_KEYS, MOST_WAITING};
use crate::schema::{Absent, Kind, TableReference};

pub const DECIDE: TableReference = TableReference {
    heading: "[decide]",
    variant: None,
    page: "decide",
    summary: "Addresses for requests of applications, for limits with `scope = \"request\"`.",
    keys: &[
        key(
            "http",
            Kind::Text(&["127.0.0.1:9465", "unix:/run/weir/decide.sock"]),
            Absent::Described("off"),
            "Address and port, or Unix socket, of `POST /v1/decide`. The socket belongs to the group `weir`.",
        ),
        key(
            "grpc",
            Kind::Text(&["127.0.0.1:8081"]),
            Absent::Described("off"),
            "Address and port of Envoy's rate limit service (`envoy.service.ratelimit.v3`).",
        ),
        key(
            "max_keys",
            Kind::Integer(1, MOST_KEYS),
            Absent::Described(
                "1_000_000, or fewer where all limits together would take more than 1 GiB",
            ),
            "Number of keys of each limit, for each multiplier of a class.",
        ),
        key(
            "max_waiting",
            Kind::Integer(0, MOST_WAITING),
            Absent::Value("1024"),
            "The most waiting requests, in all.",
        ),
        key(
            "max_waiting_per_key",
            Kind::Integer(0, MOST_WAITING),
            Absent::Value("64"),
            "The most waiting requests for one key of a limit.",
        ),
    ],
    example: "[decide]\nhttp = \"unix:/run/weir/decide.sock\"\ngrpc = \"127.0.0.1:8081\"\n\n[[limit]]\n\
              name = \"logins\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"5/min\"\n",
};
