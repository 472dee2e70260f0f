//! Signatures of requests to S3: "Authenticating Requests (AWS Signature Version 4)", with the header `Authorization`.

use std::env;
use std::fmt::Write as _;
use std::path::PathBuf;

use hmac::{Hmac, Mac as _};
use host::read;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

/// Names the file, as in other programs for S3.
const FILE: &str = "AWS_SHARED_CREDENTIALS_FILE";
/// The file without that, in the home directory.
const DEFAULT_FILE: &str = ".aws/credentials";
const PROFILE: &str = "default";
/// The region that servers other than Amazon's have by default.
const REGION: &str = "us-east-1";
const MOST_BYTES: u64 = 64 << 10;
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "s3";

/// A key of S3. Without `Debug`: it has a secret.
#[derive(PartialEq)]
pub(super) struct Credentials {
    id: String,
    secret: String,
    token: Option<String>,
    region: String,
}

/// A request as it is signed: its path and query need no escapes, and the query is sorted by names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'r> {
    pub(super) method: &'r str,
    /// With its port, unless it is the scheme's.
    pub(super) host: &'r str,
    pub(super) path: &'r str,
    pub(super) query: &'r str,
    pub(super) body: &'r [u8],
}

impl Credentials {
    /// Reads the file of credentials.
    pub(super) fn read() -> Result<Self, String> {
        let home = || Some(PathBuf::from(env::var_os("HOME")?).join(DEFAULT_FILE));
        let named = env::var_os(FILE).map(PathBuf::from);
        let path = named.or_else(home);
        let path = path.ok_or_else(|| format!("missing credentials: name their file in {FILE}"))?;
        let text = read::read_text(&path, MOST_BYTES).map_err(|error| error.to_string())?;
        Self::parse(&text).ok_or_else(|| {
            let path = path.display();
            format!(
                "{path} has no credentials: write aws_access_key_id and aws_secret_access_key below [{PROFILE}]"
            )
        })
    }

    /// Those of the default profile.
    fn parse(text: &str) -> Option<Self> {
        let header = format!("[{PROFILE}]");
        let lines = text.lines().map(str::trim);
        let of_profile = lines.skip_while(|line| *line != header).skip(1);
        let of_profile = of_profile.take_while(|line| !line.starts_with('['));
        let pairs: Vec<(&str, &str)> = of_profile
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.trim(), value.trim()))
            .collect();
        let value = |name: &str| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Some(Self {
            id: value("aws_access_key_id")?,
            secret: value("aws_secret_access_key")?,
            token: value("aws_session_token"),
            region: value("region").unwrap_or_else(|| REGION.to_owned()),
        })
    }

    /// The headers of a signed request, with its `host`.
    pub(super) fn headers(
        &self,
        request: Request<'_>,
        now: Timestamp,
    ) -> Vec<(&'static str, String)> {
        let time = now.strftime("%Y%m%dT%H%M%SZ").to_string();
        let day = now.strftime("%Y%m%d").to_string();
        let mut headers = vec![
            ("host", request.host.to_owned()),
            ("x-amz-content-sha256", hexadecimal(&hash(request.body))),
            ("x-amz-date", time.clone()),
        ];
        headers.extend(
            self.token
                .clone()
                .map(|token| ("x-amz-security-token", token)),
        );
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines: String = headers
            .iter()
            .map(|(name, value)| format!("{name}:{value}\n"))
            .collect();
        let Request {
            method,
            path,
            query,
            ..
        } = request;
        let body = &headers[1].1;
        let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{body}");
        let scope = format!("{day}/{}/{SERVICE}/aws4_request", self.region);
        let hashed = hexadecimal(&hash(canonical.as_bytes()));
        let text = format!("{ALGORITHM}\n{time}\n{scope}\n{hashed}");
        let mut key = format!("AWS4{}", self.secret).into_bytes();
        for part in [&day, &self.region, SERVICE, "aws4_request"] {
            key = authenticated(&key, part);
        }
        let signature = hexadecimal(&authenticated(&key, &text));
        let id = &self.id;
        headers.push((
            "authorization",
            format!(
                "{ALGORITHM} Credential={id}/{scope},SignedHeaders={names},Signature={signature}"
            ),
        ));
        headers
    }
}

fn hash(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

fn authenticated(key: &[u8], text: &str) -> Vec<u8> {
    // A key of any length is valid.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return Vec::new();
    };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Those of the examples in the documentation of S3.
    pub(in crate::rules_store) fn credentials() -> Credentials {
        let text = "[other]\naws_access_key_id = x\n\n[default]\naws_access_key_id=AKIAIOSFODNN7EXAMPLE\n\
                    aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\n[last]\nregion = x\n";
        Credentials::parse(text).unwrap()
    }

    #[test]
    fn signatures_are_those_of_the_documentation() {
        let now = "2013-05-24T00:00:00Z".parse().unwrap();
        for (query, expected) in [
            (
                "lifecycle=",
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "max-keys=2&prefix=J",
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let request = Request {
                method: "GET",
                host: "examplebucket.s3.amazonaws.com",
                path: "/",
                query,
                body: b"",
            };
            let headers = credentials().headers(request, now);
            let (name, value) = headers.last().unwrap();
            assert_eq!(*name, "authorization");
            let parts = "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
                         SignedHeaders=host;x-amz-content-sha256;x-amz-date";
            assert_eq!(value, &format!("{ALGORITHM} {parts},Signature={expected}"));
        }
    }

    #[test]
    fn a_session_has_a_token_and_a_file_without_a_key_has_no_credentials() {
        let text = "[default]\naws_access_key_id=a\naws_secret_access_key=b\naws_session_token=c\nregion=eu-central-1\n";
        let session = Credentials::parse(text).unwrap();
        assert_eq!(session.region, "eu-central-1");
        let request = Request {
            method: "PUT",
            host: "h",
            path: "/b/k",
            query: "",
            body: b"text",
        };
        let headers = session.headers(request, Timestamp::UNIX_EPOCH);
        assert!(headers.contains(&("x-amz-security-token", "c".to_owned())));
        for text in [
            "",
            "[default]\naws_access_key_id=a\n",
            "[other]\naws_access_key_id=a\naws_secret_access_key=b\n",
        ] {
            assert!(Credentials::parse(text).is_none(), "{text}");
        }
    }
}
