//! The prefixes of some networks and countries in a database.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use common::network::from_asn;
use config::PrefixKey;
use config::policy::{GeoKey, GeoKind, Networks, Prefix};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use maxminddb::{MaxMindDbError, Reader, WithinOptions};
use thiserror::Error;

use crate::record;

/// The most prefixes of a database's keys together.
pub const MOST_PREFIXES: usize = 4_000_000;
/// The most characters of a type.
const LONGEST_TYPE: usize = 64;
/// Zero bytes between the search tree and the data.
const SEPARATOR: usize = 16;
/// The shortest prefixes that one network or country may have: no real one is near them.
const WIDEST: (u8, u8) = (4, 8);
/// A tree with as many nodes has one more leaf, except for references to the IPv4 addresses.
const LEAVES_PER_NODE: usize = 3;

/// The prefixes of the requested keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Database {
    /// Its type in the words of its publisher.
    pub database_type: String,
    /// When it was built, in seconds since 1970.
    pub built: u64,
    /// Each key's prefixes, disjoint; none for a key that the database does not contain.
    pub prefixes: BTreeMap<GeoKey, Vec<Prefix>>,
    /// All networks, if they were requested.
    pub networks: Option<AllNetworks>,
}

/// All networks of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllNetworks {
    pub prefixes: Networks,
    /// Prefixes of reserved numbers, which are in no network.
    pub reserved: u64,
}

/// A database cannot be used.
#[derive(Debug, Error)]
pub enum GeoError {
    /// The file is damaged, or in another format.
    #[error("it is damaged or not in MaxMind's format: {0}; download it again")]
    Invalid(#[from] MaxMindDbError),
    /// The tree and the data are not where the metadata says.
    #[error(
        "it is damaged: its search tree does not end where its metadata says; download it again"
    )]
    Layout,
    /// More networks than the tree has nodes for.
    #[error("it is damaged: its search tree is not a tree; download it again")]
    NoTree,
    /// No record has the field.
    #[error("it has no {} in any record (its type is {database_type:?}); set [geo] {} to a database of {}", field(*.kind), .kind.key(), contents(*.kind))]
    OtherKind {
        kind: GeoKind,
        database_type: String,
    },
    /// One key has a large part of the internet.
    #[error("it is damaged: it says that {prefix} belongs to {key}; download it again")]
    TooWide { key: GeoKey, prefix: String },
    /// More prefixes than [`MOST_PREFIXES`].
    #[error(
        "the requested networks and countries have more than {MOST_PREFIXES} prefixes; request fewer of them"
    )]
    TooMany,
}

const fn field(kind: GeoKind) -> &'static str {
    match kind {
        GeoKind::Asn => "number of an autonomous system",
        GeoKind::Country => "code of a country",
    }
}

const fn contents(kind: GeoKind) -> &'static str {
    match kind {
        GeoKind::Asn => "autonomous systems",
        GeoKind::Country => "countries",
    }
}

impl Database {
    /// Reads the prefixes of these keys from a file's content, and those of all networks if `all_networks`. Records without the field of this kind are left out.
    ///
    /// # Errors
    ///
    /// When any part that was read is damaged, or no record has the field: nothing of such a file is used.
    pub fn read(
        bytes: &[u8],
        kind: GeoKind,
        wanted: &BTreeSet<GeoKey>,
        all_networks: bool,
    ) -> Result<Self, GeoError> {
        let reader = Reader::from_source(bytes)?;
        let about = reader.metadata();
        // It is printed.
        let database_type: String = about
            .database_type
            .chars()
            .filter(|c| !c.is_control())
            .take(LONGEST_TYPE)
            .collect();
        let tree = about.node_count as usize * usize::from(about.record_size) / 4;
        if bytes
            .get(tree..tree + SEPARATOR)
            .is_none_or(|separator| separator.iter().any(|byte| *byte != 0))
        {
            return Err(GeoError::Layout);
        }
        // Many networks share a record.
        let mut known: HashMap<usize, Option<GeoKey>> = HashMap::new();
        let mut nets: BTreeMap<GeoKey, Vec<IpNet>> =
            wanted.iter().map(|key| (*key, Vec::new())).collect();
        let mut has_field = false;
        let (mut leaves, mut found) = (0, 0);
        let (mut networks, mut reserved) = (Vec::new(), 0);
        for network in reader.networks(options(&reader)?)? {
            let network = network?;
            leaves += 1;
            if leaves
                > (about.node_count as usize)
                    .saturating_add(1)
                    .saturating_mul(LEAVES_PER_NODE)
            {
                return Err(GeoError::NoTree);
            }
            let Some(offset) = network.offset() else {
                continue;
            };
            let key = match known.get(&offset) {
                Some(key) => *key,
                None => {
                    let key = record::key(kind, &network)?;
                    has_field |= key.is_some();
                    known.insert(offset, key);
                    key
                }
            };
            let Some(key) = key else { continue };
            let wanted = nets.get_mut(&key);
            if wanted.is_none() && !all_networks {
                continue;
            }
            let net = network.network()?;
            let net = match net.ip() {
                IpAddr::V4(address) => Ipv4Net::new(address, net.prefix()).map(IpNet::from),
                IpAddr::V6(address) => Ipv6Net::new(address, net.prefix()).map(IpNet::from),
            };
            let Ok(net) = net else {
                return Err(GeoError::NoTree);
            };
            // IPv4 addresses in their IPv6 notations, which no packet has.
            let prefix = PrefixKey::from(net);
            if net.addr().is_ipv6()
                && (prefix.is_ipv4() || prefix.covers_ipv4() && prefix.length > 0)
            {
                continue;
            }
            if let (true, GeoKey::Asn(number)) = (all_networks, key) {
                if is_too_wide(&net) {
                    return Err(GeoError::TooWide {
                        key,
                        prefix: net.to_string(),
                    });
                }
                match from_asn(number) {
                    Some(network) => networks.push((Prefix::from(net), network)),
                    None => reserved += 1,
                }
            }
            wanted.into_iter().for_each(|nets| nets.push(net));
            found += 1;
            if found > MOST_PREFIXES {
                return Err(GeoError::TooMany);
            }
        }
        if !has_field {
            return Err(GeoError::OtherKind {
                kind,
                database_type,
            });
        }
        let mut prefixes = BTreeMap::new();
        for (key, nets) in nets {
            let nets = IpNet::aggregate(&nets);
            if let Some(wide) = nets.iter().find(|net| is_too_wide(net)) {
                return Err(GeoError::TooWide {
                    key,
                    prefix: wide.to_string(),
                });
            }
            prefixes.insert(key, nets.into_iter().map(Prefix::from).collect());
        }
        networks.shrink_to_fit();
        let networks = all_networks.then(|| AllNetworks {
            prefixes: Arc::new(networks),
            reserved,
        });
        Ok(Self {
            database_type,
            built: about.build_epoch,
            prefixes,
            networks,
        })
    }
}

/// All networks, and the IPv4 ones once.
fn options(reader: &Reader<&[u8]>) -> Result<WithinOptions, MaxMindDbError> {
    let options = WithinOptions::default().include_networks_without_data();
    let lowest = reader.lookup(IpAddr::V4(Ipv4Addr::UNSPECIFIED))?;
    // Without IPv4 addresses there are no references to them. The reader would take for one each network with the
    // record of the prefix around them.
    let has_ipv4 = lowest.network()?.is_ipv4();
    Ok(if lowest.has_data() && !has_ipv4 {
        options.include_aliased_networks()
    } else {
        options
    })
}

fn is_too_wide(net: &IpNet) -> bool {
    let (ipv4, ipv6) = WIDEST;
    net.prefix_len() < if net.addr().is_ipv4() { ipv4 } else { ipv6 }
}
