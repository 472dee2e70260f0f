//! What Weir's kernel programs and its agent share, written once: the limiters, the packet parser and the layout of
//! every map. No clock, no map, no allocation.
#![cfg_attr(not(test), no_std)]
