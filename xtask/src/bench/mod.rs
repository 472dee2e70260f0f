//! The benchmark: what `agent/benches/edge` measures, as tables, plots and a document.

pub mod aims;
pub mod document;
pub mod figures;
pub mod machine;
pub mod plot;
pub mod programs;
pub mod table;
