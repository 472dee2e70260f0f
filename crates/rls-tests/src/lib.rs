//! Tests of the rate limit service with a client that was generated from Envoy's own definitions, not from ours.
