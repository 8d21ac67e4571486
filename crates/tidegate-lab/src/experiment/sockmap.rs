//! Servers and loads as unchanged programs, whose connections go through a map of sockets.

#[cfg(target_os = "linux")]
mod here {
    use std::path::Path;
    use std::sync::Once;

    use tidegate::fastpath::sockmap::{ControlGroup, Sockmap, SockmapError};

    use crate::process;
    use crate::throttle::remove_left_behind;

    /// More than a window has.
    const CONNECTIONS: u32 = 1024;

    /// A map, and the control group whose programs use it; removed when dropped, or when the lab is interrupted.
    pub(in crate::experiment) struct SockmapGroup {
        map: Sockmap,
        group: ControlGroup,
    }

    impl SockmapGroup {
        pub(in crate::experiment) fn open() -> Result<Self, SockmapError> {
            static ONCE: Once = Once::new(); // a group that still has processes is waited for
            let mut made = Self { map: Sockmap::load(CONNECTIONS)?, group: ControlGroup::own()? };
            ONCE.call_once(|| made.group().parent().into_iter().for_each(remove_left_behind));
            process::remove_at_end(made.group());
            made.map.attach(&made.group)?;
            Ok(made)
        }

        pub(in crate::experiment) fn group(&self) -> &Path {
            self.group.path()
        }

        /// Whether all messages so far went through the map, and there were some.
        pub(in crate::experiment) fn carried_all(&self) -> bool {
            self.map.carried().is_ok_and(|carried| carried.by_map > 0 && carried.by_tcp == 0)
        }
    }

    impl Drop for SockmapGroup {
        fn drop(&mut self) {
            process::is_removed(self.group());
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod here {
    use std::convert::Infallible;
    use std::path::Path;

    /// There are no maps of sockets.
    pub(in crate::experiment) struct SockmapGroup(Infallible);

    impl SockmapGroup {
        pub(in crate::experiment) fn open() -> Result<Self, &'static str> {
            Err("maps of sockets are for Linux")
        }

        pub(in crate::experiment) fn group(&self) -> &Path {
            match self.0 {}
        }

        pub(in crate::experiment) fn carried_all(&self) -> bool {
            match self.0 {}
        }
    }
}

pub(super) use here::SockmapGroup;
