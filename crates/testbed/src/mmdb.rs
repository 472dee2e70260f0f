//! Small databases of networks in MaxMind's format, version 2.0.

use std::net::IpAddr;

/// Bytes of zeros between the search tree and the data.
const SEPARATOR: usize = 16;
const MARKER: &[u8] = b"\xab\xcd\xefMaxMind.com";

/// A value of a record.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Uint16(u16),
    Uint32(u32),
    Uint64(u64),
    Map(Vec<(String, Self)>),
    Array(Vec<Self>),
    /// A pointer to an offset in the data.
    Pointer(u32),
}

/// A map of text and other values.
#[must_use]
pub fn map<const N: usize>(pairs: [(&str, Value); N]) -> Value {
    Value::Map(pairs.map(|(key, value)| (key.to_owned(), value)).to_vec())
}

/// A text.
#[must_use]
pub fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

/// A record of an autonomous system, as MaxMind and ip-location-db write it.
#[must_use]
pub fn asn(number: u32) -> Value {
    map([
        ("autonomous_system_number", Value::Uint32(number)),
        ("autonomous_system_organization", text("Example")),
    ])
}

/// A record of a country, as MaxMind writes it.
#[must_use]
pub fn country(code: &str) -> Value {
    let names = map([("en", text("Example")), ("de", text("Beispiel"))]);
    map([
        ("continent", map([("code", text("EU"))])),
        ("country", map([("names", names), ("iso_code", text(code))])),
    ])
}

/// A database to be written. The fields of the metadata may lie.
#[derive(Clone, Debug)]
pub struct Mmdb {
    pub record_size: u16,
    pub ip_version: u16,
    pub database_type: String,
    /// Instead of the number of nodes.
    pub node_count: Option<u32>,
    /// In front of the records, for pointers to them.
    pub data: Vec<u8>,
    /// Instead of `record_size` and `ip_version` in the metadata.
    pub claims: (Option<u16>, Option<u16>),
    networks: Vec<(IpAddr, u8, Value)>,
}

/// A child of a node.
#[derive(Clone, Copy, PartialEq)]
enum Child {
    Nothing,
    Node(usize),
    /// A record by its offset in the data.
    Record(usize),
}

impl Mmdb {
    /// An empty database.
    #[must_use]
    pub fn new(ip_version: u16, record_size: u16) -> Self {
        let database_type = "Test".to_owned();
        Self {
            record_size,
            ip_version,
            database_type,
            node_count: None,
            data: Vec::new(),
            claims: (None, None),
            networks: Vec::new(),
        }
    }

    /// Adds a network, as in `192.0.2.0/24`. Later networks replace earlier ones.
    #[must_use]
    pub fn with(mut self, network: &str, record: Value) -> Self {
        let (address, length) = network.split_once('/').expect("a length");
        self.networks.push((
            address.parse().expect("an address"),
            length.parse().expect("a length"),
            record,
        ));
        self
    }

    /// Adds a network by its address.
    pub fn add(&mut self, address: IpAddr, length: u8, record: Value) {
        self.networks.push((address, length, record));
    }

    /// The file.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut tree = vec![[Child::Nothing; 2]];
        let mut data = self.data.clone();
        let mut records: Vec<(&Value, usize)> = Vec::new();
        for (address, length, record) in &self.networks {
            let known = records
                .iter()
                .find(|(known, _)| *known == record)
                .map(|(_, offset)| *offset);
            let offset = known.unwrap_or(data.len());
            if known.is_none() {
                records.push((record, offset));
                encode(record, &mut data);
            }
            self.insert(&mut tree, *address, *length, Child::Record(offset));
        }
        if self.ip_version == 6 {
            self.refer_to_ipv4(&mut tree);
        }
        let mut file = Vec::new();
        for [left, right] in &tree {
            let number = |child: &Child| match child {
                Child::Nothing => tree.len() as u32,
                Child::Node(node) => *node as u32,
                Child::Record(offset) => (tree.len() + SEPARATOR + offset) as u32,
            };
            write_node(self.record_size, number(left), number(right), &mut file);
        }
        file.extend([0; SEPARATOR]);
        file.extend(data);
        file.extend(MARKER);
        let node_count = self.node_count.unwrap_or(tree.len() as u32);
        let (record_size, ip_version) = self.claims;
        let metadata = map([
            ("binary_format_major_version", Value::Uint16(2)),
            ("binary_format_minor_version", Value::Uint16(0)),
            ("build_epoch", Value::Uint64(1_700_000_000)),
            ("database_type", text(&self.database_type)),
            ("description", map([("en", text("Networks for tests"))])),
            (
                "ip_version",
                Value::Uint16(ip_version.unwrap_or(self.ip_version)),
            ),
            ("languages", Value::Array(vec![text("en")])),
            ("node_count", Value::Uint32(node_count)),
            (
                "record_size",
                Value::Uint16(record_size.unwrap_or(self.record_size)),
            ),
        ]);
        encode(&metadata, &mut file);
        file
    }

    /// The bits of a network. IPv4 addresses are in `::/96` of an IPv6 tree.
    fn bits(&self, address: IpAddr, length: u8) -> Vec<usize> {
        let (bytes, above): (Vec<u8>, usize) = match address {
            IpAddr::V4(address) if self.ip_version == 6 => {
                ([vec![0; 12], address.octets().to_vec()].concat(), 96)
            }
            IpAddr::V4(address) => (address.octets().to_vec(), 0),
            IpAddr::V6(address) => (address.octets().to_vec(), 0),
        };
        (0..above + usize::from(length))
            .map(|nth| usize::from(bytes[nth / 8] >> (7 - nth % 8) & 1))
            .collect()
    }

    fn insert(&self, tree: &mut Vec<[Child; 2]>, address: IpAddr, length: u8, child: Child) {
        let bits = self.bits(address, length);
        let (last, path) = bits.split_last().expect("no network of all addresses");
        let mut node = 0;
        for bit in path {
            node = match tree[node][*bit] {
                Child::Node(next) => next,
                // A wider network is divided.
                around => {
                    tree.push([around; 2]);
                    let next = tree.len() - 1;
                    tree[node][*bit] = Child::Node(next);
                    next
                }
            };
        }
        tree[node][*last] = child;
    }

    /// Adds the references that MaxMind's databases have: IPv4-mapped, 6to4 and Teredo addresses.
    fn refer_to_ipv4(&self, tree: &mut Vec<[Child; 2]>) {
        let mut node = 0;
        for _ in 0..96 {
            match tree[node][0] {
                Child::Node(next) => node = next,
                _ => return,
            }
        }
        for (address, length) in [("::ffff:0:0", 96), ("2002::", 16), ("2001::", 32)] {
            self.insert(
                tree,
                address.parse().expect("an address"),
                length,
                Child::Node(node),
            );
        }
    }
}

fn write_node(record_size: u16, left: u32, right: u32, file: &mut Vec<u8>) {
    let (left, right) = (left.to_be_bytes(), right.to_be_bytes());
    match record_size {
        24 => {
            file.extend(&left[1..]);
            file.extend(&right[1..]);
        }
        28 => {
            file.extend(&left[1..]);
            file.push(left[0] << 4 | right[0] & 15);
            file.extend(&right[1..]);
        }
        _ => {
            file.extend(left);
            file.extend(right);
        }
    }
}

/// Appends a value to the data.
pub fn encode(value: &Value, data: &mut Vec<u8>) {
    let number = |kind: u8, bytes: &[u8], data: &mut Vec<u8>| {
        let significant: Vec<u8> = bytes
            .iter()
            .copied()
            .skip_while(|byte| *byte == 0)
            .collect();
        head(kind, significant.len(), data);
        data.extend(significant);
    };
    match value {
        Value::Text(text) => {
            head(2, text.len(), data);
            data.extend(text.as_bytes());
        }
        Value::Uint16(value) => number(5, &value.to_be_bytes(), data),
        Value::Uint32(value) => number(6, &value.to_be_bytes(), data),
        Value::Uint64(value) => number(9, &value.to_be_bytes(), data),
        Value::Map(pairs) => {
            head(7, pairs.len(), data);
            for (key, value) in pairs {
                encode(&Value::Text(key.clone()), data);
                encode(value, data);
            }
        }
        Value::Array(values) => {
            head(11, values.len(), data);
            values.iter().for_each(|value| encode(value, data));
        }
        Value::Pointer(offset) => {
            data.push(0b0011_1000);
            data.extend(offset.to_be_bytes());
        }
    }
}

/// A type and a size below 285.
fn head(kind: u8, size: usize, data: &mut Vec<u8>) {
    let (short, extra) = if size < 29 {
        (size as u8, None)
    } else {
        (29, Some((size - 29) as u8))
    };
    if kind < 8 {
        data.push(kind << 5 | short);
    } else {
        data.extend([short, kind - 7]);
    }
    data.extend(extra);
}
