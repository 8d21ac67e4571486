//! Entries of the folder that are no regular files, on every model.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use tidegate::system::file::Folder;
use tidegate_services::FilesOptions;

use crate::client::{Client, folder, models, serve};

#[test]
fn sockets_and_pipes_are_forbidden_and_hide_nothing() {
    let outer = folder();
    let root = outer.path().join("root");
    let pipe = |name: &str| {
        let made = std::process::Command::new("mkfifo").arg(root.join(name)).status().expect("mkfifo");
        assert!(made.success());
    };
    let socket = |name: &str| UnixListener::bind(root.join(name)).expect("a socket");
    std::fs::create_dir(root.join("index")).expect("a folder");
    // Beside a file in another coding, and as the index of a folder.
    let _sockets = ["socket", "small.gz", "index/index.html"].map(socket);
    ["pipe", "small.br"].into_iter().for_each(pipe);
    for model in models() {
        let server = serve(model, outer.path(), FilesOptions::default());
        let mut client = Client::of(&server);
        let pipe = client.get("/pipe", "");
        assert_eq!(pipe.status, 403, "{model}: {}", pipe.head);
        let socket = client.get("/socket", "");
        assert_eq!((socket.status, &socket.body), (403, &pipe.body), "{model}: {}", socket.head);
        assert_eq!(client.get("/socket/", "").status, 403, "{model}");
        let small = client.get("/small", "Accept-Encoding: gzip, br\r\n");
        assert_eq!((small.status, small.body.len()), (200, 4096), "{model}: {}", small.head);
        let folder = String::from_utf8(client.get("/index/", "").body).expect("text");
        assert!(folder.contains("has no index"), "{model}: {folder}");
        server.stop();
        server.join();
    }
}

#[test]
fn relative_links_are_followed_inside_and_absolute_ones_never() {
    let outer = folder();
    let root = outer.path().join("root");
    let link = |target: &Path, name: &str| symlink(target, root.join(name)).expect("a link");
    link(Path::new("file.txt"), "sub/relative");
    link(Path::new("../sub/file.txt"), "sub/up");
    link(&root.join("sub/file.txt"), "sub/absolute");
    link(&root.join("sub"), "absolute");
    link(Path::new("../../secret"), "sub/out");
    let by_kernel = Folder::open(&root).expect("a folder").confinement().contains("openat2");
    let inside = if by_kernel { 200 } else { 404 };
    for model in models() {
        let server = serve(model, outer.path(), FilesOptions::default());
        let mut client = Client::of(&server);
        for (target, status) in [
            ("/sub/relative", inside),
            ("/sub/up", inside),
            ("/sub/absolute", 404),
            ("/absolute/file.txt", 404),
            ("/sub/out", 404),
        ] {
            assert_eq!(client.get(target, "").status, status, "{model}: {target}");
        }
        server.stop();
        server.join();
    }
}
