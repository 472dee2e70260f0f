use super::key::{key, words};
use crate::cluster::MOST_HOT_KEYS;
use crate::schema::{Absent, Kind, TableReference};

pub const CLUSTER: TableReference = TableReference {
    heading: "[cluster]",
    variant: None,
    page: "cluster",
    summary: "The store through which many hosts enforce limits with `cluster` together, and share bans.",
    keys: &[
        key(
            "store",
            Kind::Either(&[STORE, Kind::List(&STORE)]),
            Absent::Invalid,
            "Address of Redis or Valkey; several for a Redis Cluster's nodes or for Sentinels. `rediss://` uses TLS.",
        ),
        key(
            "sentinel",
            Kind::Text(&["mymaster"]),
            Absent::Described("`store` is not a Sentinel"),
            "Name of the master, if `store` lists Sentinels.",
        ),
        key(
            "authorities",
            Kind::Path(&["/etc/ssl/store.pem"]),
            Absent::Described("the system's"),
            "Certificate authorities of the store, in PEM.",
        ),
        key(
            "name",
            Kind::Text(&["shop"]),
            Absent::Value("\"weir\""),
            "Name of the cluster. Clusters on one store require different names.",
        ),
        key(
            "node",
            Kind::Text(&["host-1"]),
            Absent::Described("the host name"),
            "Name of this host, unique in the cluster.",
        ),
        key(
            "sync",
            Kind::Time(&["100ms"]),
            Absent::Value("\"100ms\""),
            "Time between two exchanges with the store, 10 ms to 60 s.",
        ),
        key(
            "max_hot_keys",
            Kind::Integer(1, MOST_HOT_KEYS),
            Absent::Value("10000"),
            "Keys of limits with `cluster = \"keys\"` that a host publishes at a time. For other keys, each host \
             enforces the whole limit separately.",
        ),
        key(
            "when_store_is_down",
            words!(WhenStoreIsDown),
            Absent::Value("\"share\""),
            "What a host enforces when its leases have expired and the store is unavailable. `share`: the limit divided by the \
             hosts last seen. `local`: the whole limit. `open`: nothing is refused. `closed`: everything is refused.",
        ),
        key(
            "share_bans",
            Kind::Boolean,
            Absent::Value("false"),
            "Whether every host enforces the bans that operators (`agent ban`) and limits (`escalate`) of all hosts make, within \
             a second.",
        ),
    ],
    example: "[cluster]\nstore = \"redis://127.0.0.1:6379\"\nnode = \"host-1\"\n\n[[limit]]\nname = \"logins\"\n\
              scope = \"request\"\nkey = [\"user\"]\nrate = \"600/min\"\ncluster = true\n",
};

const STORE: Kind = Kind::Text(&["redis://127.0.0.1:6379", "rediss://user:password@host:6379"]);
