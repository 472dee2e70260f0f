use super::key::key;
use crate::crowdsec::MOST_DECISIONS;
use crate::schema::{Absent, Kind, TableReference};

pub const CROWDSEC: TableReference = TableReference {
    heading: "[crowdsec]",
    variant: None,
    page: "crowdsec",
    summary: "CrowdSec's local API, whose decisions become bans: Weir is a bouncer.",
    keys: &[
        key(
            "url",
            Kind::Text(&["http://127.0.0.1:8080"]),
            Absent::Invalid,
            "Address of the local API: http or https.",
        ),
        key(
            "api_key",
            Kind::Text(&["0123456789abcdef"]),
            Absent::Described("`api_key_file`"),
            "The bouncer's key, from `cscli bouncers add weir`.",
        ),
        key(
            "api_key_file",
            Kind::Path(&["/etc/weir/crowdsec.key"]),
            Absent::Described("`api_key`"),
            "File with the key, readable by root only. One of `api_key` and `api_key_file` is required.",
        ),
        key(
            "update",
            Kind::Time(&["10s", "500ms"]),
            Absent::Value("\"10s\""),
            "Time between two requests for changes, 100 ms to 1 h.",
        ),
        key(
            "reconcile",
            Kind::Time(&["10m"]),
            Absent::Value("\"10m\""),
            "Time between two requests for all decisions, 1 s to 1 day. It corrects whatever the changes missed.",
        ),
        key(
            "timeout",
            Kind::Time(&["30s"]),
            Absent::Value("\"30s\""),
            "The most time of one request, 100 ms to 10 min.",
        ),
        key(
            "max_decisions",
            Kind::Integer(1, MOST_DECISIONS),
            Absent::Value("200_000"),
            "The most decisions. Further ones are ignored, counted and reported.",
        ),
        key(
            "machine_id",
            Kind::Text(&["weir"]),
            Absent::Described("bans by limits are not reported"),
            "Name of a machine of the local API. In its name, Weir reports bans by limits with `escalate` as alerts.",
        ),
        key(
            "password",
            Kind::Text(&["0123456789abcdef"]),
            Absent::Described("`password_file`"),
            "The machine's password.",
        ),
        key(
            "password_file",
            Kind::Path(&["/etc/weir/crowdsec.password"]),
            Absent::Described("`password`"),
            "File with the password, readable by root only.",
        ),
    ],
    example: "[agent]\ninterfaces = [\"eth0\"]\n\n[crowdsec]\nurl = \"http://127.0.0.1:8080\"\n\
              api_key_file = \"/etc/weir/crowdsec.key\"\nupdate = \"1s\"\n",
};
