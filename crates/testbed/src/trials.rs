//! Tests under the names of their functions, for test programs with a harness of their own.

/// Whether `WEIR_MEASURING` leaves a test out: `only` takes those that measure the machine, `none` the others.
#[must_use]
pub fn is_left_out(is_measuring: bool) -> bool {
    match std::env::var("WEIR_MEASURING").as_deref() {
        Ok("only") => !is_measuring,
        Ok("none") => is_measuring,
        _ => false,
    }
}

/// A test: its function and the function's name.
#[macro_export]
macro_rules! test {
    ($test:ident) => {
        (stringify!($test), $test as fn())
    };
    ($module:ident::$test:ident) => {
        (stringify!($test), $module::$test as fn())
    };
}

/// A table of tests.
#[macro_export]
macro_rules! tests {
    ($($($test:ident)::+),* $(,)?) => {
        &[$($crate::test!($($test)::+)),*]
    };
}
