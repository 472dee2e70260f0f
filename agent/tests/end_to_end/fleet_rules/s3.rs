//! A server as S3: objects of one bucket in memory, for requests that are signed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::{fs, thread};

use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};

pub const BUCKET: &str = "rules";
const ID: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const REGION: &str = "eu-central-1";
/// The most names in a part of a list.
const PAGE: usize = 2;

/// Writes a file of credentials; with `secret`, a wrong one.
pub fn write_credentials(file: &Path, secret: Option<&str>) {
    let secret = secret.unwrap_or(SECRET);
    let text = format!(
        "[default]\naws_access_key_id = {ID}\naws_secret_access_key = {secret}\nregion = {REGION}\n"
    );
    fs::write(file, text).unwrap();
}

type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// The port of a running server, and its objects.
pub fn serve() -> (u16, Objects) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let objects = Objects::default();
    let served = Arc::clone(&objects);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let objects = Arc::clone(&served);
            // A client that ends is no fault.
            thread::spawn(move || stream.map(|stream| connection(stream, &objects)));
        }
    });
    (port, objects)
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

fn connection(stream: TcpStream, objects: &Objects) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let request = read(&mut reader)?;
        let (status, headers, body) = reply(&request, objects);
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n");
        writer.write_all(head.as_bytes()).ok()?;
        writer.write_all(&body).ok()?;
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut first = lines.first()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers = lines.iter().skip(1).filter_map(|line| line.split_once(':'));
    let headers: BTreeMap<String, String> = headers
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.get("content-length");
    let length = length.map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        headers,
        body,
    })
}

type Reply = (&'static str, String, Vec<u8>);

fn error(status: &'static str, code: &str) -> Reply {
    let body = format!("<Error><Code>{code}</Code></Error>");
    (status, String::new(), body.into_bytes())
}

fn reply(request: &Request, objects: &Objects) -> Reply {
    if request.header("authorization") != authorization(request) {
        return error("403 Forbidden", "SignatureDoesNotMatch");
    }
    let mut objects = objects.lock().unwrap();
    let Some(key) = request.path.strip_prefix(&format!("/{BUCKET}")) else {
        return error("404 Not Found", "NoSuchBucket");
    };
    let key = key.strip_prefix('/').unwrap_or(key);
    let tag = |body: &[u8]| {
        format!(
            "\"{}\"",
            hexadecimal(&Sha256::digest(body))[..32].to_owned()
        )
    };
    let present = objects.get(key).map(|body| tag(body));
    match request.method.as_str() {
        "GET" if key.is_empty() => ("200 OK", String::new(), list(&request.query, &objects)),
        "GET" => match objects.get(key) {
            None => error("404 Not Found", "NoSuchKey"),
            Some(_) if present.as_deref() == Some(request.header("if-none-match")) => {
                ("304 Not Modified", String::new(), Vec::new())
            }
            Some(body) => ("200 OK", format!("etag: {}\r\n", tag(body)), body.clone()),
        },
        "PUT" => {
            let expected = request.header("if-match");
            let must_be_new = request.header("if-none-match") == "*";
            if must_be_new && present.is_some()
                || !expected.is_empty() && present.as_deref() != Some(expected)
            {
                return error("412 Precondition Failed", "PreconditionFailed");
            }
            objects.insert(key.to_owned(), request.body.clone());
            ("200 OK", String::new(), Vec::new())
        }
        _ => error("405 Method Not Allowed", "MethodNotAllowed"),
    }
}

/// A part of the list of the objects in a folder.
fn list(query: &str, objects: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(key, _)| *key == name);
        found.map(|(_, value)| value.replace("%2F", "/"))
    };
    assert_eq!(value("list-type").as_deref(), Some("2"));
    assert_eq!(value("delimiter").as_deref(), Some("/"));
    let (prefix, after) = (value("prefix").unwrap(), value("continuation-token"));
    let in_folder = |key: &&String| {
        let name = key.strip_prefix(&prefix);
        name.is_some_and(|name| !name.contains('/')) && Some(*key) > after.as_ref()
    };
    let keys: Vec<&String> = objects.keys().filter(in_folder).collect();
    let mut text = "<?xml version=\"1.0\"?>\n<ListBucketResult>".to_owned();
    for key in keys.iter().take(PAGE) {
        write!(text, "<Contents><Key>{key}</Key></Contents>").unwrap();
    }
    if keys.len() > PAGE {
        let last = keys[PAGE - 1];
        write!(
            text,
            "<NextContinuationToken>{last}</NextContinuationToken>"
        )
        .unwrap();
    }
    (text + "</ListBucketResult>").into_bytes()
}

/// The header that a request has to have.
fn authorization(request: &Request) -> String {
    let time = request.header("x-amz-date");
    let day = time.get(..8).unwrap_or_default();
    let names = ["host", "x-amz-content-sha256", "x-amz-date"];
    let body = hexadecimal(&Sha256::digest(&request.body));
    if request.header("x-amz-content-sha256") != body {
        return "another body".to_owned();
    }
    let mut canonical = format!("{}\n{}\n{}\n", request.method, request.path, request.query);
    for name in names {
        writeln!(canonical, "{name}:{}", request.header(name)).unwrap();
    }
    let names = names.join(";");
    write!(canonical, "\n{names}\n{body}").unwrap();
    let scope = format!("{day}/{REGION}/s3/aws4_request");
    let canonical = hexadecimal(&Sha256::digest(canonical));
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{canonical}");
    let parts = [day, REGION, "s3", "aws4_request", &text];
    let signature = parts
        .iter()
        .fold(format!("AWS4{SECRET}").into_bytes(), |key, part| {
            let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
            mac.update(part.as_bytes());
            mac.finalize().into_bytes().to_vec()
        });
    let signature = hexadecimal(&signature);
    format!("AWS4-HMAC-SHA256 Credential={ID}/{scope},SignedHeaders={names},Signature={signature}")
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
