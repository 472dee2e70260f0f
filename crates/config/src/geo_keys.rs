//! The keys `asn` and `country` of classes, ban lists and limits.

use super::policy::GeoKey;
use super::report::Span;
use super::schema::{Key, Located};

/// The entries of `asn` and `country` with their spans.
pub fn located<T>(read: &Located<'_, T>, asn: &Key, country: &Key) -> Vec<(GeoKey, Span)> {
    let asn = read.elements(asn).into_iter();
    let country = read.elements(country).into_iter();
    asn.map(|(number, span)| (GeoKey::Asn(number), span))
        .chain(country.map(|(code, span)| (GeoKey::Country(code), span)))
        .collect()
}
