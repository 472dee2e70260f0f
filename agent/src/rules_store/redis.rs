//! Redis or Valkey: objects are strings.

use std::time::Duration;

use config::policy::StoreUrl;
use redis::{Client, Connection, RedisError, Script};

use super::store::{Found, MOST_BYTES, Store, StoreError};

const CONNECT: Duration = Duration::from_secs(5);
const REQUEST: Duration = Duration::from_secs(10);
/// How often a change is tried while other writers are faster.
const ATTEMPTS: u32 = 10;
/// The start of all keys.
const PREFIX: &str = "weir:rules:";
/// The error of a key that has another type.
const NO_STRING: &str = "WRONGTYPE";
/// Replaces a string that has not changed. A missing one is an empty text, which no object has.
const REPLACE: &str = "local now = redis.call('GET', KEYS[1]) or ''\n\
                       if now ~= ARGV[1] then return 0 end\n\
                       redis.call('SET', KEYS[1], ARGV[2])\n\
                       return 1";

pub(super) struct Redis {
    url: StoreUrl,
    connection: Option<Connection>,
}

impl Redis {
    pub(super) fn new(url: &StoreUrl) -> Self {
        Self {
            url: url.clone(),
            connection: None,
        }
    }

    /// Sends a request; after an error, the next one connects again.
    fn send<T>(
        &mut self,
        request: impl FnOnce(&mut Connection) -> Result<T, RedisError>,
    ) -> Result<T, StoreError> {
        let shown = self.url.to_string();
        let failed =
            |error: RedisError| StoreError::Unavailable(format!("{shown} failed: {error}"));
        if self.connection.is_none() {
            let client = Client::open(self.url.reveal()).map_err(failed)?;
            let connection = client.get_connection_with_timeout(CONNECT);
            let connection = connection.map_err(failed)?;
            connection.set_read_timeout(Some(REQUEST)).map_err(failed)?;
            connection
                .set_write_timeout(Some(REQUEST))
                .map_err(failed)?;
            self.connection = Some(connection);
        }
        let Some(connection) = &mut self.connection else {
            return Err(StoreError::Unavailable(format!(
                "{shown} has no connection"
            )));
        };
        request(connection).map_err(|error| match error.code() {
            // A reply: the connection works.
            Some(_) => StoreError::ReadOnly(format!("{shown} refused a request: {error}")),
            None => {
                self.connection = None;
                failed(error)
            }
        })
    }

    fn get(&mut self, name: &str) -> Result<Option<String>, StoreError> {
        let bytes = self.send(|connection| {
            let mut request = redis::cmd("GETRANGE");
            // One byte more than an object may have.
            let request = request.arg(key(name)).arg(0).arg(MOST_BYTES);
            match request.query::<Vec<u8>>(connection) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.code() == Some(NO_STRING) => Ok(None),
                Err(error) => Err(error),
            }
        })?;
        object(bytes).map_err(|reason| StoreError::Invalid {
            name: name.to_owned(),
            reason: reason.to_owned(),
        })
    }
}

/// The text of an object; `None` for a missing one, which is empty.
fn object(bytes: Option<Vec<u8>>) -> Result<Option<String>, &'static str> {
    let bytes = bytes.ok_or("its key is no string")?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err("it is larger than 8 MiB");
    }
    let text = String::from_utf8(bytes).map_err(|_| "it is no text")?;
    Ok((!text.is_empty()).then_some(text))
}

fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

impl Store for Redis {
    fn read(&mut self, name: &str, tag: Option<&str>) -> Result<Found, StoreError> {
        Ok(Found::of_text(self.get(name)?, tag))
    }

    fn write(&mut self, name: &str, text: &str) -> Result<(), StoreError> {
        self.send(|connection| redis::cmd("SET").arg(key(name)).arg(text).query(connection))
    }

    fn change(
        &mut self,
        name: &str,
        change: &mut dyn FnMut(Option<&str>) -> Result<String, StoreError>,
    ) -> Result<(), StoreError> {
        let script = Script::new(REPLACE);
        for _ in 0..ATTEMPTS {
            let before = self.get(name)?;
            let text = change(before.as_deref())?;
            let is_replaced: bool = self.send(|connection| {
                script
                    .key(key(name))
                    .arg(before.unwrap_or_default())
                    .arg(text)
                    .invoke(connection)
            })?;
            if is_replaced {
                return Ok(());
            }
        }
        Err(StoreError::Contended(name.to_owned()))
    }

    fn settles(&self) -> Option<Duration> {
        None
    }

    fn list(&mut self, folder: &str) -> Result<Vec<String>, StoreError> {
        let start = format!("{}/", key(folder));
        // Names are plain, so that none is a pattern.
        let pattern = format!("{start}*");
        let mut names = Vec::new();
        let mut cursor = 0_u64;
        loop {
            let (next, keys): (u64, Vec<Vec<u8>>) = self.send(|connection| {
                redis::cmd("SCAN")
                    .arg(cursor)
                    .arg("MATCH")
                    .arg(&pattern)
                    .arg("COUNT")
                    .arg(1_000)
                    .query(connection)
            })?;
            let of_folder = keys.iter().filter_map(|key| {
                let key = std::str::from_utf8(key).ok()?;
                key.strip_prefix(&start)
            });
            names.extend(of_folder.map(str::to_owned));
            cursor = next;
            if cursor == 0 {
                names.sort();
                names.dedup();
                return Ok(names);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_bounded_text() {
        let bytes = |count: u64| Some(vec![b'a'; count as usize]);
        assert_eq!(object(bytes(0)), Ok(None));
        assert_eq!(object(bytes(3)), Ok(Some("aaa".to_owned())));
        assert!(object(bytes(MOST_BYTES)).is_ok());
        for wrong in [bytes(MOST_BYTES + 1), Some(vec![0xff]), None] {
            assert!(object(wrong).is_err());
        }
    }
}
