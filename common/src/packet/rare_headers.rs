//! Rare headers.

use super::extensions::{Transport, behind_extensions};
use super::link::{Network, behind_tags};
use super::request::begins_request;
use super::tunnel::{Layers, headers};
use super::{Bytes, Packet};

/// Parsers of rare headers. In the kernel each method is a separate function, since inline code takes stack space.
pub trait RareHeaders: Bytes {
    /// [`behind_tags`].
    fn behind_tags(&self, ethertype: u16) -> Network {
        behind_tags(self, ethertype)
    }
    /// [`behind_extensions`].
    fn behind_extensions(&self, next: u8, offset: usize) -> Transport {
        behind_extensions(self, next, offset)
    }
    /// [`begins_request`].
    fn begins_request(&self, network: usize, payload: usize, is_dns: bool) -> bool {
        begins_request(self, network, payload, is_dns)
    }
    /// [`headers`].
    fn headers(&self, layers: Layers) -> u32 {
        headers(self, layers)
    }
}

impl RareHeaders for [u8] {}

impl Packet {
    /// [`headers`] of the buffer from which it was parsed.
    #[inline(always)]
    #[must_use]
    pub fn headers(&self, bytes: &(impl RareHeaders + ?Sized)) -> u32 {
        bytes.headers(Layers::of(self))
    }
}
