package processruntime

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestRevisionIsWhatEtcdSays(t *testing.T) {
	for answer, expected := range map[string]int64{
		`{"header":{"revision":"4711"}}`: 4711,
		`{"header":{}}`:                  0,
		`nonsense`:                       0,
	} {
		etcd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || r.URL.Path != "/v3/kv/range" {
				http.NotFound(w, r)
				return
			}
			_, _ = w.Write([]byte(answer))
		}))
		if revision := newRevisionClock(etcd.URL + "/").now(); revision != expected {
			t.Errorf("%s: revision %d, expected %d", answer, revision, expected)
		}
		etcd.Close()
		if revision := newRevisionClock(etcd.URL).now(); revision != 0 {
			t.Errorf("etcd is gone, and the revision is %d", revision)
		}
	}
}

func TestWithoutAClockThereIsNoRevision(t *testing.T) {
	if revision := newRevisionClock("").now(); revision != 0 {
		t.Errorf("revision %d", revision)
	}
}
