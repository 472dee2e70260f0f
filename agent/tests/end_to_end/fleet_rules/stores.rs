//! Rules through stores that the build machine may lack.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command};

use testbed::port::Port;
use testbed::tests;
use testbed::trials::Test;
use testbed::{certificates, documents};

use super::fleet::{Fleet, HOSTS, Host, said, spread};
use super::s3;
use crate::redis::{self, Redis};

pub const WITH_NGINX: &[Test] = tests![rules_spread_through_nginx_over_tls];
pub const WITH_REDIS: &[Test] = tests![rules_spread_through_redis];
pub const WITH_VALKEY: &[Test] = tests![rules_spread_through_valkey];

fn rules_spread_through_redis() {
    spread_through(&Redis::start(&[]));
}

fn rules_spread_through_valkey() {
    let program = redis::valkey().expect("a program of Valkey");
    spread_through(&Redis::start_by(&program, &[]));
}

pub fn rules_spread_through_a_bucket_by_signed_requests() {
    let folder = tempfile::tempdir().unwrap();
    let (port, objects) = s3::serve();
    let rules = format!("s3+http://127.0.0.1:{port}/{}/of/web", s3::BUCKET);
    let mut fleet = Fleet::at(folder, rules);
    let file = fleet.path("credentials");
    fleet.environment = Some(("AWS_SHARED_CREDENTIALS_FILE", file.clone()));
    let status = |fleet: &Fleet| said(&fleet.weir(&["fleet", "status", "--to", &fleet.rules]));
    assert!(status(&fleet).contains("credentials"), "without the file");
    s3::write_credentials(&file, Some("wrong"));
    let refused = status(&fleet);
    assert!(refused.contains("403 (SignatureDoesNotMatch)"), "{refused}");
    assert!(!refused.contains("wrong"), "{refused}");
    s3::write_credentials(&file, None);
    let hosts = spread(&fleet);
    // A list of several parts.
    assert_eq!(fleet.status()["hosts"], HOSTS);
    let is_in_folder = |key: &String| key.starts_with("of/web/");
    assert!(objects.lock().unwrap().keys().all(is_in_folder));
    // Without the key, rules stay. A key that replaces it counts without a restart.
    s3::write_credentials(&file, Some("wrong"));
    hosts[0].until("without the store", |rules| rules["store_up"] == false);
    assert_eq!(
        hosts.iter().map(Host::version).collect::<Vec<_>>(),
        [1; HOSTS]
    );
    s3::write_credentials(&file, None);
    hosts[0].until("with the store", |rules| rules["store_up"] == true);
    fleet.abort("complaints");
    for host in &hosts {
        host.until("aborted", |rules| rules["version"] == 0);
    }
}

fn spread_through(redis: &Redis) {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::at(folder, format!("{}/web", redis.url()));
    let hosts = spread(&fleet);
    fleet.abort("complaints");
    for host in &hosts {
        host.until("aborted", |rules| rules["version"] == 0);
        assert_eq!(host.rate(), None);
    }
}

/// Whether nginx and openssl are here.
pub fn has_nginx() -> bool {
    let is_here = |(program, argument): (&str, &str)| {
        let output = Command::new(program).arg(argument).output();
        output.is_ok_and(|output| output.status.success())
    };
    [("nginx", "-v"), ("openssl", "version")]
        .into_iter()
        .all(is_here)
}

/// A running nginx, as the guide has it, with TLS.
struct Nginx {
    child: Child,
    _port: Port,
}

impl Nginx {
    fn start(folder: &Path, port: Port) -> Self {
        certificates::write(folder);
        let page = documents::page("docs/guides/fleet-rules.md");
        let blocks = page.blocks();
        let block = blocks.iter().find(|block| block.kind() == "nginx").unwrap();
        let store = folder.join("store");
        let location = block
            .text
            .replace("/srv/rules", store.to_str().unwrap())
            .replace("192.0.2.0/24", "127.0.0.1");
        // Its workers run as another user.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        let text = format!(
            "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n\
             proxy_temp_path proxy;\nfastcgi_temp_path fastcgi;\nuwsgi_temp_path uwsgi;\nscgi_temp_path scgi;\n\
             server {{\nlisten 127.0.0.1:{} ssl;\nssl_certificate certificate.pem;\nssl_certificate_key key.pem;\n\
             {location}\n}}\n}}\n",
            port.number()
        );
        let config = folder.join("nginx.conf");
        fs::write(&config, text).unwrap();
        let log = fs::File::create(folder.join("nginx.log")).unwrap();
        let child = Command::new("nginx")
            .arg("-p")
            .arg(folder)
            .arg("-c")
            .arg(&config)
            .stderr(log)
            .spawn()
            .unwrap();
        let address = ("127.0.0.1", port.number());
        testbed::wait::wait("nginx", || TcpStream::connect(address).is_ok());
        Self { child, _port: port }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rules_spread_through_nginx_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("store")).unwrap();
    let port = Port::reserve();
    let rules = format!("https://127.0.0.1:{}/web", port.number());
    let _nginx = Nginx::start(folder.path(), port);
    let mut fleet = Fleet::at(folder, rules);
    fleet.environment = Some(("SSL_CERT_FILE", fleet.path("ca.pem")));
    let hosts = spread(&fleet);
    // A truncated object is refused here as well.
    let object = fs::read_to_string(fleet.object("releases/1")).unwrap();
    let index = fs::read_to_string(fleet.object("index")).unwrap();
    let digest = index
        .lines()
        .find(|line| line.starts_with("digest"))
        .unwrap();
    fs::write(fleet.object("releases/1"), &object[..object.len() - 20]).unwrap();
    fs::write(
        fleet.object("index"),
        index.replace(digest, "digest = \"x\""),
    )
    .unwrap();
    for host in &hosts {
        let rules = host.until("refused", |rules| rules["refusals"] == 1);
        assert!(
            rules["last_refusal"]
                .as_str()
                .unwrap()
                .contains("truncated")
        );
        assert_eq!(rules["version"], 1);
    }
    fs::write(fleet.object("releases/1"), &object).unwrap();
    fs::write(fleet.object("index"), &index).unwrap();
    fleet.abort("complaints");
    for host in &hosts {
        host.until("aborted", |rules| rules["version"] == 0);
        assert_eq!(host.rate(), None);
    }
}
