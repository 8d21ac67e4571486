//! The macro that declares a struct of limits (`limits!`), and the words of its rows.
//!
//! Public only because services declare their limits with the same macro, which expands to these names.

use super::Limit;
pub use super::limit::{
    Change::*, Effect::*, Holds::*, Range::*, Relation, TIME, TIME_OR_ZERO, declares_every_model,
};
pub use super::setting::{PolicyField, Unit::*};
pub use crate::model::Model::{self, *};

/// All models.
pub const EVERY: &[Model] = Model::ALL;

/// The effect of a limit that a service or layer keeps itself, whatever the model.
pub const BY_THE_SERVICE: &[(&[Model], crate::policy::Effect)] = &[(EVERY, Kept)];

/// Models with an event loop of this library.
pub const LOOPS: &[Model] = &[Select, Poll, Epoll, Uring, AsyncSelect, EventSelect, Overlapped, Iocp, Rio];

/// Models without one.
pub const WITHOUT_LOOP: &[Model] = &[Blocking, Pool, Tokio];

/// Readiness models: the kernel reports what is ready, then they receive and send.
pub const READINESS: &[Model] = &[Select, Poll, Epoll, AsyncSelect, EventSelect];

/// Completion models: the kernel reports what is done.
pub const COMPLETION: &[Model] = &[Uring, Overlapped, Iocp, Rio];

/// Models of Windows only.
pub const WINDOWS: &[Model] = &[AsyncSelect, EventSelect, Overlapped, Iocp, Rio];

/// Defines a struct of limits with its documentation, its defaults, its setters, and its rows of the table.
///
/// A value is made of the default by setters, which have the names of the fields. The structs of a policy are
/// `non_exhaustive`, so that a new limit breaks no user.
///
/// `parts` are nested structs of limits. `at` is the path to this struct in a policy. A service has a table of its own:
/// it implements [`Limited`]($crate::policy::Limited) with `TABLE = &[Self::ROWS]`, and its rows are `on:
/// BY_THE_SERVICE`, because the model has no part in them.
#[doc(hidden)]
#[macro_export]
macro_rules! limits {
    (
        $(#[$meta:meta])*
        pub struct $Struct:ident, as $prefix:literal of $Policy:ty, at |$policy:ident| $at:expr;
        parts { $( $(#[$part_meta:meta])* $part:ident: $Part:ty, )* }
        $(
            $(#[$field_meta:meta])*
            $field:ident: $type:ty = $default:expr => {
                what: $what:literal,
                cost: $cost:literal,
                option: $option:literal,
                unit: $unit:expr,
                range: $range:expr,
                change: $change:expr,
                on: $on:expr,
                $($key:ident: $value:expr,)*
            }
        )*
    ) => {
        $(#[$meta])*
        pub struct $Struct {
            $( $(#[$part_meta])* pub $part: $Part, )*
            $(
                #[doc = concat!($what, ".")]
                #[doc = ""]
                #[doc = concat!("Default `", stringify!($default), "`. Cost: ", $cost, ".")]
                #[doc = ""]
                $(#[$field_meta])*
                pub $field: $type,
            )*
        }

        impl Default for $Struct {
            fn default() -> Self {
                Self {
                    $( $part: Default::default(), )*
                    $( $field: $default, )*
                }
            }
        }

        /// Setters, one for each limit. The fields have the documentation.
        impl $Struct {
            $(
                #[doc = concat!("Sets [`", stringify!($part), "`](#structfield.", stringify!($part), ").")]
                #[must_use]
                pub fn $part(mut self, $part: $Part) -> Self {
                    self.$part = $part;
                    self
                }
            )*
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }

        impl $Struct {
            /// The rows of its limits.
            pub(super) const ROWS: &'static [$crate::policy::Limit<$Policy>] = {
                #[allow(unused_imports, reason = "not every struct needs all of them")]
                use $crate::policy::table::*;
                &[$({
                    let mut row = $crate::policy::table::row::<$Policy>(
                        concat!($prefix, stringify!($field)),
                        $what,
                        $cost,
                        |$policy| {
                            let part: Option<&mut $Struct> = $at;
                            part.map(|part| &mut part.$field as &mut dyn PolicyField)
                        },
                    );
                    row.option = $option;
                    row.unit = $unit;
                    row.range = $range;
                    row.change = $change;
                    row.on = $on;
                    $(row.$key = $value;)*
                    row
                }),*]
            };
        }

        const _: () = $crate::policy::table::declares_every_model($Struct::ROWS);
    };
}

pub(super) use limits;

/// A row with the usual values; `limits!` sets the rest.
pub const fn row<P: 'static>(
    name: &'static str,
    what: &'static str,
    cost: &'static str,
    field: fn(&mut P) -> Option<&mut dyn PolicyField>,
) -> Limit<P> {
    Limit {
        name,
        what,
        cost,
        option: "",
        unit: Count,
        range: Any,
        change: Live,
        on: &[],
        default_note: None,
        relation: None,
        needs: None,
        with: None,
        unix_socket: None,
        of_client: None,
        field,
    }
}
