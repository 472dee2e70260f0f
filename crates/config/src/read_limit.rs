//! A limit on packets and its spans.

use super::policy::{GeoKey, InterfacePattern, Limit};
use super::report::Span;

/// A limit and its name's span.
pub struct ReadLimit {
    pub limit: Limit,
    pub name_span: Span,
    /// The span of the key.
    pub key_span: Span,
    /// The span of the burst, or of the rate if there is none.
    pub burst_span: Span,
    /// The spans of its sources and interfaces.
    pub scope_spans: ScopeSpans,
    /// The span of its `escalate`.
    pub escalate_span: Span,
    /// The span of its `levels`.
    pub levels_span: Span,
}

/// The spans of its lists' elements.
#[derive(Debug, Default)]
pub struct ScopeSpans {
    pub sources: Span,
    pub geo: Vec<(GeoKey, Span)>,
    pub interfaces: Vec<(InterfacePattern, Span)>,
}
