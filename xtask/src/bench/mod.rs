//! The benchmark: what `agent/benches/edge` measures, as tables, plots and a document.

pub mod aims;
pub mod figures;
pub mod programs;
pub mod table;
