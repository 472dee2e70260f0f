//! The benchmark: the measurements of `agent/benches/edge` as tables, plots and a document.

pub mod aims;
pub mod document;
pub mod fair;
pub mod figures;
pub mod growth;
pub mod machine;
pub mod machines;
pub mod over_time;
pub mod part;
pub mod plot;
pub mod programs;
pub mod table;
