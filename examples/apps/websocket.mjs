// Sends messages of many sizes to an echo over WebSocket and checks what comes back. `node websocket.mjs ADDR:PORT`.

const socket = new WebSocket(`ws://${process.argv[2]}`);
socket.binaryType = "arraybuffer";
// Around the borders between the three forms of a length (RFC 6455, section 5.2), and more than one read.
const sizes = [0, 1, 125, 126, 127, 65535, 65536, 300000];
const sent = sizes.flatMap((n) => ["é".repeat(n), new Uint8Array(n).map((_, i) => i * 7)]);
const bytes = (data) => Buffer.from(data).toString("base64");
let next = 0;

function fail(what) {
    console.log(what);
    process.exit(1);
}

socket.onerror = (event) => fail(`no connection: ${event.message ?? event.type}`);
socket.onopen = () => sent.forEach((message) => socket.send(message));
socket.onmessage = ({ data }) => {
    if (bytes(data) !== bytes(sent[next])) fail(`message ${next} came back changed`);
    next += 1;
    if (next === sent.length) socket.close(1000, "done");
};
socket.onclose = ({ code, wasClean }) => {
    if (next < sent.length || !wasClean || code !== 1000) fail(`closed with ${code} after ${next} messages`);
    console.log("ok");
};
