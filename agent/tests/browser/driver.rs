//! Chromium through chromedriver's WebDriver protocol, on loopback.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// The variable with chromedriver's path; `cargo xtask integration` sets it.
pub const PROGRAM: &str = "WEIR_CHROMEDRIVER";
/// For a reply, which may be the start of Chromium on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A headless Chromium, ended when dropped.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    process: Option<i32>,
    _folder: tempfile::TempDir,
}

impl Browser {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut driver = Command::new(std::env::var_os(PROGRAM).unwrap())
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let port = port.expect("chromedriver prints its port");
        let mut browser = Self {
            driver,
            port,
            session: String::new(),
            process: None,
            _folder: folder,
        };
        let profile = format!("--user-data-dir={}", browser._folder.path().display());
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--hide-scrollbars",
            // Not even a bug of the page, or of Chromium, sends anything beyond the host.
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            &profile,
        ];
        let always = json!({
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        });
        let made = browser.call(
            "POST",
            "/session",
            &json!({"capabilities": {"alwaysMatch": always}}),
        );
        browser.session = made["sessionId"]
            .as_str()
            .unwrap_or_else(|| panic!("no session: {made}"))
            .to_owned();
        browser.process = made["capabilities"]["goog:processID"]
            .as_i64()
            .map(|process| process as i32);
        browser
    }

    /// A command of the protocol; panics if it fails.
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "POST" {
            body.to_string()
        } else {
            String::new()
        };
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.port,
            body.len()
        )
        .unwrap();
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap();
            }
        }
        let mut reply = vec![0; length];
        reader.read_exact(&mut reply).unwrap();
        let mut reply: Value = serde_json::from_slice(&reply).unwrap();
        assert!(
            reply["value"]["error"].is_null(),
            "{method} {path} {body}: {reply}"
        );
        reply["value"].take()
    }

    fn post(&self, command: &str, body: &Value) -> Value {
        self.call(
            "POST",
            &format!("/session/{}/{command}", self.session),
            body,
        )
    }

    /// Loads a file.
    pub fn open(&self, page: &Path) {
        self.visit(&format!("file://{}", page.display()));
    }

    /// Loads a page.
    pub fn visit(&self, address: &str) {
        self.post("url", &json!({"url": address}));
    }

    /// Runs the body of a function in the page.
    pub fn run(&self, script: &str) -> Value {
        self.post("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Clicks on the nth element of a selector, as a user does.
    pub fn click(&self, selector: &str, nth: usize) {
        let found = self.post(
            "elements",
            &json!({"using": "css selector", "value": selector}),
        );
        let element = found[nth]
            .as_object()
            .and_then(|element| element.values().next()?.as_str().map(str::to_owned));
        let element = element.unwrap_or_else(|| panic!("no element {nth} of {selector}: {found}"));
        self.post(&format!("element/{element}/click"), &json!({}));
    }

    /// A command of Chromium's developer tools.
    pub fn tools(&self, command: &str, parameters: &Value) -> Value {
        self.post(
            "goog/cdp/execute",
            &json!({"cmd": command, "params": parameters}),
        )
    }

    /// Shows pages on a screen of this width, light or dark.
    pub fn look(&self, width: u32, scheme: &str) {
        let screen =
            json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600});
        self.tools("Emulation.setDeviceMetricsOverride", &screen);
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.tools("Emulation.setEmulatedMedia", &features);
    }

    /// A picture of the whole page.
    pub fn picture(&self) -> Vec<u8> {
        let shot = self.tools(
            "Page.captureScreenshot",
            &json!({"format": "png", "captureBeyondViewport": true}),
        );
        base64::engine::general_purpose::STANDARD
            .decode(shot["data"].as_str().unwrap())
            .unwrap()
    }

    /// Errors of the console since the last call, with refusals of the content security policy.
    pub fn errors(&self) -> Vec<String> {
        let entries = self.post("se/log", &json!({"type": "browser"}));
        let errors = entries
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["level"] == "SEVERE");
        errors
            .map(|entry| entry["message"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Addresses of requests since the last call.
    pub fn requests(&self) -> Vec<String> {
        let entries = self.post("se/log", &json!({"type": "performance"}));
        let address = |entry: &Value| {
            let event: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let message = &event["message"];
            (message["method"] == "Network.requestWillBeSent").then(|| {
                message["params"]["request"]["url"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
        };
        entries
            .as_array()
            .unwrap()
            .iter()
            .filter_map(address)
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(process) = self.process {
            let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
