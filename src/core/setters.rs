//! Setters of builders: each takes the builder by value, sets one field, and returns it.

/// Writes setters of a builder: `pub fn name(argument: Type) => field = value;`. The type
/// as a whole is `#[must_use]`.
macro_rules! setters {
    ($builder:ty: $($(#[$doc:meta])* pub fn $name:ident($($arg:ident: $type:ty),*) =>
        $($field:ident).+ = $value:expr;)+) => {
        impl $builder {
            $($(#[$doc])*
            pub fn $name(mut self, $($arg: $type),*) -> Self {
                self.$($field).+ = $value;
                self
            })+
        }
    };
}

pub(crate) use setters;
