//! Keys and documents for tests.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use minisign::KeyPair;

use crate::canary::{Canary, Share};
use crate::document::{Abort, Document, Object, Release};
use crate::key::PublicKey;
use crate::keyring::Keyring;
use crate::sign::Signer;

/// 2026-01-01.
pub fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600)
}

pub const DAY: Duration = Duration::from_secs(86_400);

/// A publisher's key.
pub struct Key {
    pub signer: Signer,
    pub public: String,
}

impl Key {
    pub fn new() -> Self {
        let pair = KeyPair::generate_unencrypted_keypair().unwrap();
        let secret = pair.sk.to_box(None).unwrap().into_string();
        Self {
            signer: Signer::new(&secret, None).unwrap(),
            public: format!("ed25519:{}", pair.pk.to_base64()),
        }
    }

    pub fn parsed(&self) -> PublicKey {
        self.public.parse().unwrap()
    }

    pub fn keyring(&self) -> Keyring {
        Keyring::new(vec![self.parsed()])
    }

    pub fn release(&self, release: &Release) -> String {
        self.signer
            .sign(&Document::Release(release.clone()))
            .unwrap()
    }

    pub fn abort(&self, version: u64) -> String {
        let abort = Abort {
            stream: "web".into(),
            version,
            publisher: "ops".into(),
            published: start(),
            reason: "complaints".into(),
        };
        self.signer.sign(&Document::Abort(abort)).unwrap()
    }
}

/// The text of one limit.
pub fn limit(name: &str, rate: &str) -> String {
    format!("[[limit]]\nname = {name:?}\nrate = {rate:?}\n")
}

/// A release on all hosts, of one limit whose rate is the version.
pub fn release(version: u64) -> Release {
    let rate = format!("{version}000/s");
    Release {
        stream: "web".into(),
        version,
        previous: version - 1,
        publisher: "ops".into(),
        published: start(),
        expires: start() + DAY,
        bake: Duration::from_secs(60),
        canary: Canary::among(["h"], Share::ALL, "web", version).unwrap(),
        select: BTreeMap::new(),
        predicted: BTreeMap::new(),
        objects: vec![Object::new("rules.toml", limit("web", &rate))],
    }
}
