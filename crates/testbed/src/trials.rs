//! Tests under the names of their functions, for test programs with a harness of their own.

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
