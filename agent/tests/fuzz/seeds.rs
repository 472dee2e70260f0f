//! The seeds of the coverage-guided fuzzers, in crates/fuzz/corpus. `WEIR_FUZZ_SEEDS=write cargo test -p agent --test fuzz`
//! writes those that no text editor can.

use std::fs;
use std::path::PathBuf;

use common::packet::build::Frame;
use prost::Message as _;
use rls::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rls::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use rls::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use rls::envoy::service::rate_limit_quota::v3::{BucketId, RateLimitQuotaUsageReports};
use rls::envoy::service::ratelimit::v3::RateLimitRequest;
use testbed::mmdb::{Mmdb, asn, country};

fn corpus(target: &str) -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../crates/fuzz/corpus"
    ))
    .join(target)
}

/// The seeds of a target, by name.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    let folder = corpus(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{folder:?} has no seed");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Writes the seeds that are no texts.
pub fn write() {
    let put = |target: &str, name: &str, bytes: &[u8]| {
        fs::create_dir_all(corpus(target)).unwrap();
        fs::write(corpus(target).join(name), bytes).unwrap();
    };
    let (four, six) = ([192, 0, 2, 7], [0x20; 16]);
    let query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\0\0\x01\0\x01";
    let frames = [
        (
            "udp",
            Frame::ethernet().ipv4(four, four).udp(5_000, 53, query),
        ),
        (
            "tcp",
            Frame::ethernet().ipv4(four, four).tcp(5_000, 80, 2, b""),
        ),
        (
            "http",
            Frame::ethernet()
                .ipv4(four, four)
                .tcp(5_000, 80, 0x18, b"GET / HTTP/1.1\r\n\r\n"),
        ),
        (
            "tagged",
            Frame::ethernet()
                .vlan(7)
                .ipv6(six, six)
                .udp(5_000, 443, b"x"),
        ),
        (
            "extension",
            Frame::ethernet()
                .ipv6(six, six)
                .extension(60, &[0; 7])
                .icmp(128),
        ),
    ];
    for (name, frame) in frames {
        put("packet", name, &frame.build());
    }
    put(
        "mmdb",
        "asn",
        &Mmdb::new(6, 24).with("2001:db8::/32", asn(64_500)).bytes(),
    );
    put(
        "mmdb",
        "country",
        &Mmdb::new(4, 28).with("192.0.2.0/24", country("XX")).bytes(),
    );
    put(
        "capture",
        "ssh",
        &fs::read(corpus("../../../docs/captures/ssh.pcap")).unwrap()[..2_000],
    );

    let entry = |key: &str, value: &str| Entry {
        key: key.to_owned(),
        value: value.as_bytes().to_vec(),
    };
    let descriptor = |entries: &[Entry]| RateLimitDescriptor {
        entries: entries.to_vec(),
        ..RateLimitDescriptor::default()
    };
    let request = RateLimitRequest {
        domain: "weir".to_owned(),
        descriptors: vec![
            descriptor(&[entry("user", "alice")]),
            descriptor(&[entry("api-key", "a"), entry("path", "/b")]),
            descriptor(&[entry("remote_address", "192.0.2.7")]),
        ],
        hits_addend: 2,
    };
    put("rls", "three", &request.encode_to_vec());
    let usage = |user: &str, allowed| BucketQuotaUsage {
        bucket_id: Some(BucketId {
            bucket: [("user".to_owned(), user.as_bytes().to_vec())].into(),
        }),
        num_requests_allowed: allowed,
        num_requests_denied: 1,
    };
    let reports = RateLimitQuotaUsageReports {
        domain: "weir".to_owned(),
        bucket_quota_usages: vec![usage("alice", 5), usage("bob", 0)],
    };
    put("rls", "quotas", &reports.encode_to_vec());
}
