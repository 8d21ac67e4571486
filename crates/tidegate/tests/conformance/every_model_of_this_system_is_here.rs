//! On Linux all seven models work; only io_uring may be forbidden by the system, and then says so.

use libtest_mimic::Trial;
use tidegate::{Availability, Model};

pub(crate) fn trials() -> Vec<Trial> {
    let mut all = tests![a_model_that_is_not_here_is_refused_by_name_and_not_replaced];
    #[cfg(target_os = "linux")]
    all.extend(tests![every_model_of_linux_is_available_unless_the_system_forbids_io_uring]);
    #[cfg(windows)]
    all.extend(tests![what_is_built_for_windows_is_available]);
    all
}

#[cfg(target_os = "linux")]
fn every_model_of_linux_is_available_unless_the_system_forbids_io_uring() {
    let linux = "blocking pool select poll epoll uring tokio";
    for name in linux.split(' ') {
        let model: Model = name.parse().expect("a name of a model");
        let Availability::Unavailable(why) = model.availability() else { continue };
        // A sandbox answers EPERM, a kernel without it ENOSYS (`io_uring_setup(2)`).
        let forbidden = ["EPERM", "ENOSYS", "os error 1)", "os error 38)"].iter().any(|e| why.contains(e));
        assert!(model == Model::Uring && forbidden, "{model} is unavailable: {why}");
    }
}

#[cfg(windows)]
fn what_is_built_for_windows_is_available() {
    for name in "blocking pool select poll tokio async-select event-select overlapped iocp".split(' ') {
        let model: Model = name.parse().expect("a name of a model");
        let availability = model.availability();
        assert!(availability.is_available(), "{model}: {availability:?}");
    }
}

fn a_model_that_is_not_here_is_refused_by_name_and_not_replaced() {
    for &model in Model::ALL {
        let Availability::Unavailable(why) = model.availability() else { continue };
        let (service, _) = crate::kit::Echo::service();
        let server = tidegate::Server::new(service).model(model).bind("127.0.0.1:0");
        let error = server.expect_err("refused").to_string();
        assert!(error.contains(model.name()) && error.contains(&why), "{error}");
    }
}
