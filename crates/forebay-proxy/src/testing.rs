//! Requests without a connection, for unit tests of modules.

forebay_server::testing_with!(crate::MODULES);
