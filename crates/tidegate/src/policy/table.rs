//! The macro that declares a struct of limits (`limits!`), and the groups of models that rows refer to.

use crate::model::Model::{self, *};

/// All models.
pub(super) const EVERY: &[Model] = &Model::ALL;

/// Models with an event loop of this library.
pub(super) const LOOPS: &[Model] =
    &[Select, Poll, Epoll, Uring, AsyncSelect, EventSelect, Overlapped, Iocp, Rio];

/// Models without one.
pub(super) const WITHOUT_LOOP: &[Model] = &[Blocking, Pool, Tokio];

/// Readiness models: the kernel reports what is ready, then they receive and send.
pub(super) const READINESS: &[Model] = &[Select, Poll, Epoll, AsyncSelect, EventSelect];

/// Completion models: the kernel reports what is done.
pub(super) const COMPLETION: &[Model] = &[Uring, Overlapped, Iocp, Rio];

/// Models of Windows only.
pub(super) const WINDOWS: &[Model] = &[AsyncSelect, EventSelect, Overlapped, Iocp, Rio];

/// Defines a struct of limits with its documentation, its defaults, its setters, and its rows of the table.
///
/// The struct is `non_exhaustive`, so that a new limit breaks no user: outside of the crate a value is made of a
/// default by setters, which have the names of the fields.
///
/// `parts` are nested structs of limits. `at` is the path to this struct in a policy.
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
                option: $option:expr,
                unit: $unit:expr,
                range: $range:expr,
                change: $change:expr,
                on: $on:expr,
                $($key:ident: $value:expr,)*
            }
        )*
    ) => {
        $(#[$meta])*
        #[non_exhaustive]
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
                pub fn $part(self, $part: $Part) -> Self {
                    Self { $part, ..self }
                }
            )*
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
                #[must_use]
                pub fn $field(self, $field: $type) -> Self {
                    Self { $field, ..self }
                }
            )*
        }

        impl $Struct {
            /// The rows of its limits.
            pub(super) const ROWS: &'static [$crate::policy::Limit<$Policy>] = {
                #[allow(unused_imports, reason = "not every struct needs all of them")]
                use $crate::{
                    model::Model::*,
                    policy::{
                        limit::{Change::*, Effect::*, Holds::*, Range::*, Relation, TIME, TIME_OR_ZERO},
                        setting::{PolicyField, Unit::*},
                        table::*,
                    },
                };
                &[$(
                    $crate::policy::Limit {
                        option: $option,
                        unit: $unit,
                        range: $range,
                        change: $change,
                        on: $on,
                        $($key: $value,)*
                        ..$crate::policy::Limit::base(
                            concat!($prefix, stringify!($field)),
                            $what,
                            $cost,
                            |$policy| {
                                let part: Option<&mut $Struct> = $at;
                                part.map(|part| &mut part.$field as &mut dyn PolicyField)
                            },
                        )
                    }
                ),*]
            };
        }

        const _: () = $crate::policy::limit::declares_every_model($Struct::ROWS);
    };
}

pub(super) use limits;
