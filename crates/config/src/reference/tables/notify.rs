use super::key::{key, words};
use crate::schema::{Absent, Kind, TableReference};

pub const NOTIFY: TableReference = TableReference {
    heading: "[[notify]]",
    variant: None,
    page: "notify",
    summary: "A command or a webhook that receives events as JSON.",
    keys: &[
        key(
            "on",
            Kind::Either(&[Kind::List(&ON), ON]),
            Absent::Invalid,
            "Events to report. `ban`: bans by limits and operators. `attack`: start and end of an attack. `trial-failed`: a \
             trial was not confirmed in time, or its rollback failed. `interface`: limits are in effect on an interface, or \
             not any more. `store-down`: the cluster's store is unavailable, and available again. `crowdsec-down`: the same \
             of CrowdSec's API. `list-failed`: a ban list could not be read. `geo-failed`: the same of a database of `[geo]`. `oom-kill`: a group ran out of memory. \
             `throttled`: a limit refuses a source. `would-ban`: bans that enforce mode would make.",
        ),
        key(
            "command",
            Kind::Either(&[
                Kind::List(&Kind::Text(&["/usr/local/bin/page", "--now"])),
                Kind::Path(&["/usr/local/bin/page"]),
            ]),
            Absent::Described("`webhook` is required"),
            "Program and arguments. It runs without a shell, as the agent's user, and reads the document from standard \
             input. An exit status other than 0 is a failure.",
        ),
        key(
            "webhook",
            Kind::Text(&["https://hooks.example.net/weir"]),
            Absent::Described("`command` is required"),
            "Address to which the document is posted as `application/json`. A status other than 2xx is a failure. Status, \
             logs and errors show its host only.",
        ),
        key(
            "secret_file",
            Kind::Path(&["/etc/weir/webhook.token"]),
            Absent::Described("no `Authorization` header"),
            "File with the token of an `Authorization: Bearer` header, read at each attempt. Only with `webhook`.",
        ),
        key(
            "rate",
            Kind::Rate(&["10/min", "1/h"]),
            Absent::Value("\"10/min\""),
            "Most notifications in a time. Events in between wait for the next one; beyond 20 of a kind they are only \
             counted in it.",
        ),
        key(
            "timeout",
            Kind::Time(&["10s"]),
            Absent::Value("\"10s\""),
            "Time for one attempt, 100 ms to 60 s. A command that takes longer is killed, with its children.",
        ),
        key(
            "retry_for",
            Kind::Time(&["15m", "1h"]),
            Absent::Value("\"15m\""),
            "Time for which a failed notification is tried again, at most 24 h. The pause doubles from 1 s to 1 min.",
        ),
        key(
            "name",
            Kind::Text(&["pager"]),
            Absent::Described("`notify-` and the table's number"),
            "Name in `agent status`, metrics and logs; unique.",
        ),
    ],
    example: "[[notify]]\non = [\"ban\", \"attack\", \"trial-failed\", \"interface\", \"store-down\"]\n\
              command = [\"/usr/local/bin/page\"]\n\n\
              [agent]\ninterfaces = [\"eth0\"]\n\n[[limit]]\nname = \"packets-per-source\"\nrate = \"1000/s\"\n",
};

const ON: Kind = words!(NotifyOn);
