package processruntime

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// revisionLimit bounds how long a container waits for an etcd that does not answer. One that is down
// refuses at once; one that is stopped commits nothing meanwhile.
const revisionLimit = 2 * time.Second

// revisionQuery asks for a key that does not exist. The read is linearizable, so the revision in its
// answer counts every write that was acknowledged before the question.
const revisionQuery = `{"key":"AA==","count_only":true}`

// revisionClock reads the revision of the cluster's etcd, which is the observer's clock: it puts the
// lines of the record into one order with every write to the API server.
type revisionClock struct {
	url    string // of etcd; empty: there is no clock
	client http.Client
}

func newRevisionClock(url string) *revisionClock {
	return &revisionClock{url: strings.TrimSuffix(url, "/"), client: http.Client{Timeout: revisionLimit}}
}

// now is the current revision, or zero if there is no clock or it does not answer: containers start
// and end without it, and the reader of the record is told that the line carries no revision.
func (c *revisionClock) now() int64 {
	if c.url == "" {
		return 0
	}
	revision, err := c.ask()
	if err != nil {
		log.Printf("the record gets a line without a revision: %v", err)
		return 0
	}
	return revision
}

func (c *revisionClock) ask() (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), revisionLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v3/kv/range", strings.NewReader(revisionQuery))
	if err != nil {
		return 0, err
	}
	response, err := c.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("etcd answers %s", response.Status)
	}
	var answer struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return 0, fmt.Errorf("etcd's answer: %w", err)
	}
	return strconv.ParseInt(answer.Header.Revision, 10, 64)
}
