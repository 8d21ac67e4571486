// node's http module, answering every request with the same 4 KiB page.  node http.js PORT
const page = Buffer.alloc(4096, "x");
const server = require("http").createServer((request, response) => {
  response.writeHead(200, { "Content-Type": "text/html; charset=utf-8", "Content-Length": page.length });
  response.end(page);
});
server.keepAliveTimeout = 60000;
server.listen({ host: "127.0.0.1", port: Number(process.argv[2]), backlog: 4096 });
