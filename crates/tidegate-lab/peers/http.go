// Go's net/http, answering every request with the same 4 KiB page.  server PORT
package main

import (
	"bytes"
	"log"
	"net/http"
	"os"
)

func main() {
	page := bytes.Repeat([]byte("x"), 4096)
	handler := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Length", "4096")
		w.Write(page)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(handler)))
}
