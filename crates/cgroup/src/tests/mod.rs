//! Tests with a fake host in a temporary directory: written values, and errors where that fails.

mod files;
mod lifted;
mod made_up;
mod owners;
mod services;
mod taken_back;
mod threads;
