//! A publisher, and a stream in a folder, for tests.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use config::policy::RulesAddress;
use rollout::board::{Progress, Report};
use rollout::canary::Canary;
use rollout::document::{Document, Object, Release};
use rollout::sign::{Signer, new_key};

use super::stream::Stream;

pub struct Publisher(Signer);

impl Publisher {
    pub fn new() -> Self {
        let key = new_key().unwrap();
        Self(Signer::new(&key.secret, None).unwrap())
    }

    /// A signed release for all hosts, in this publisher's name.
    pub fn release(&self, publisher: &str, version: u64) -> String {
        let now = SystemTime::now();
        let text = "[[limit]]\nname = \"web\"\nrate = \"1/s\"\n";
        let release = Release {
            stream: "web".to_owned(),
            version,
            previous: version - 1,
            publisher: publisher.to_owned(),
            published: now,
            expires: now + Duration::from_secs(60),
            bake: Duration::from_secs(10),
            canary: Canary::everywhere(),
            select: BTreeMap::new(),
            predicted: BTreeMap::new(),
            objects: vec![Object::new("rules.toml", text)],
        };
        self.0.sign(&Document::Release(release)).unwrap()
    }
}

/// The stream `web` in a folder.
pub fn stream(folder: &Path) -> Stream {
    let address = format!("file://{}/web", folder.display());
    Stream::open(&RulesAddress::parse(&address).unwrap_or_else(|wrong| panic!("{wrong:?}")))
}

/// The report of a host that has no rules.
pub fn report(host: &str) -> Report {
    Report {
        host: host.to_owned(),
        labels: BTreeMap::new(),
        stream: "web".to_owned(),
        version: 0,
        digest: String::new(),
        progress: Progress::Waiting,
        effective: 0,
        refused: None,
        counts: false,
    }
}
