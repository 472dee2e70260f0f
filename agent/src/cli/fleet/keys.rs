//! Keys of publishers.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use nix::unistd::{User, getuid};
use rollout::sign::{Signer, new_key};

use super::place::{FleetError, wrong};
use crate::cli::arguments::FleetKey;

/// The most bytes of a key file or a password.
const MOST_BYTES: u64 = 4 << 10;

/// Makes a key file, which nobody else can read.
pub(super) fn keygen(file: &Path) -> Result<(), FleetError> {
    let key = new_key()?;
    let opened = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file);
    let written = opened.and_then(|mut file| {
        file.write_all(key.secret.as_bytes())?;
        file.sync_all()
    });
    written.with_context(|| {
        let file = file.display();
        format!("writing {file} failed; name a new file in a folder that exists, since a key is not overwritten")
    })?;
    println!("public_keys = [\"{}\"]", key.public);
    Ok(())
}

/// Reads a publisher's key.
pub(super) fn signer(key: &FleetKey) -> Result<Signer, FleetError> {
    let read = |path: &Path| host::read::read_text(path, MOST_BYTES).map_err(wrong);
    let password = key.password_file.as_deref().map(read).transpose()?;
    let password = password.map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
    let file = key.key.display();
    Signer::new(&read(&key.key)?, password).map_err(|error| wrong(format!("{file}: {error}")))
}

/// The publisher's name.
pub(super) fn publisher(key: &FleetKey) -> Result<String, FleetError> {
    if let Some(name) = &key.publisher {
        return Ok(name.clone());
    }
    let user = User::from_uid(getuid()).ok().flatten();
    user.map(|user| user.name)
        .ok_or_else(|| wrong("this user has no name: name the publisher with --publisher NAME"))
}
