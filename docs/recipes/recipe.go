// A kvorum client in one page of Go: net/http and nothing else.
//
//	go run recipe.go URL…                    a tour: put, get, delete, ttl, range, failures, conditions
//	go run recipe.go range START END URL…    the records of a range, a line each
//
// KVORUM_TOKEN is the token, ID.SECRET, where the nodes need one; SSL_CERT_FILE the authorities of https nodes.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Failure is what a node answered other than success. Code is for programs, Message for people.
type Failure struct {
	Status  int
	Code    string `json:"error"`
	Message string
}

func (f *Failure) Error() string { return fmt.Sprintf("%d %s: %s", f.Status, f.Code, f.Message) }

// ErrNotFound says that there is no value.
var ErrNotFound = errors.New("no value for this key")

// ErrUnknown says that the request may or may not have taken effect. Repeating it is safe.
var ErrUnknown = errors.New("outcome unknown")

// Client asks any of its nodes: each answers every request for every key.
type Client struct {
	Nodes []string
	// Whole requests: a node answers 504 after its own --request-timeout, so let it.
	HTTP http.Client
}

// escape writes a key into a query. QueryEscape writes a space as +, which is a plus sign here; PathEscape would
// leave & and = as they are.
func escape(key string) string { return strings.ReplaceAll(url.QueryEscape(key), "+", "%20") }

// newRequest begins a request, with the token if there is one.
func newRequest(method, url string, body io.Reader) (*http.Request, error) {
	request, err := http.NewRequest(method, url, body)
	if token := os.Getenv("KVORUM_TOKEN"); err == nil && token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return request, err
}

// ask asks one node after the other, as long as it is certain that nothing was done.
func (c *Client) ask(method, query string, body []byte, headers ...string) (http.Header, []byte, error) {
	var problem error
	for _, node := range c.Nodes {
		request, err := newRequest(method, node+"/v0/entity?"+query, bytes.NewReader(body))
		if err != nil {
			return nil, nil, err
		}
		request.Header.Set("Accept", "application/json") // for failures: a value comes as it is
		for _, header := range headers {
			name, value, _ := strings.Cut(header, ": ")
			request.Header.Set(name, value)
		}
		answer, err := c.HTTP.Do(request)
		if errors.Is(err, syscall.ECONNREFUSED) {
			problem = err
			continue
		}
		var content []byte
		if err == nil {
			content, err = io.ReadAll(answer.Body)
			answer.Body.Close()
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		if answer.StatusCode < 300 {
			return answer.Header, content, nil
		}
		failure := failureOf(answer.StatusCode, content)
		switch {
		case answer.StatusCode == 503: // overloaded, starting, shutting down: nothing was done
			problem = failure
			continue
		case answer.StatusCode == 504 && method != "GET":
			return nil, nil, fmt.Errorf("%w: %w", ErrUnknown, failure)
		case failure.Code == "not_found":
			return nil, nil, ErrNotFound
		}
		return nil, nil, failure
	}
	return nil, nil, problem
}

func failureOf(status int, content []byte) *Failure {
	failure := &Failure{Status: status, Message: string(content)}
	_ = json.Unmarshal(content, failure)
	return failure
}

// Put stores a value and returns its version. Options are "ttl=30s", "replicas=2/3".
func (c *Client) Put(key string, value []byte, options ...string) (string, error) {
	query := strings.Join(append([]string{"id=" + escape(key)}, options...), "&")
	header, _, err := c.ask("PUT", query, value)
	return strings.Trim(header.Get("ETag"), `"`), err
}

// Get returns the value, or ErrNotFound.
func (c *Client) Get(key string) ([]byte, error) {
	_, value, err := c.ask("GET", "id="+escape(key), nil)
	return value, err
}

// Delete deletes a key, also one that was never there, and returns the deletion's version.
func (c *Client) Delete(key string) (string, error) {
	header, _, err := c.ask("DELETE", "id="+escape(key), nil)
	return strings.Trim(header.Get("ETag"), `"`), err
}

// IfAbsent is the condition that there is no value; IfVersion that the value has this version.
const IfAbsent = "If-None-Match: *"

func IfVersion(version string) string { return `If-Match: "` + version + `"` }

// PutIf stores a value if the condition holds. A Failure of status 412 says that it did not, and that nothing was done.
// Further headers are "Kvorum-Operation: NAME", which lets the same write be repeated after ErrUnknown.
func (c *Client) PutIf(key string, value []byte, condition, option string, headers ...string) (string, error) {
	header, _, err := c.ask("PUT", "id="+escape(key)+"&"+option, value, append(headers, condition)...)
	return strings.Trim(header.Get("ETag"), `"`), err
}

// Add adds to a number and returns the new one. After ErrUnknown it may have counted, once.
func (c *Client) Add(key string, number int64) (int64, error) {
	_, sum, err := c.ask("POST", fmt.Sprintf("id=%s&add=%d", escape(key), number), nil)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(sum), 10, 64)
}

// Update stores what change makes of the value (nil without one), as one step: again where somebody came between.
func (c *Client) Update(key string, change func(old []byte) ([]byte, error)) (string, error) {
	for attempt := range 20 {
		header, old, err := c.ask("GET", "id="+escape(key), nil)
		condition := IfVersion(strings.Trim(header.Get("ETag"), `"`))
		if err == ErrNotFound {
			condition = IfAbsent
		} else if err != nil {
			return "", err
		}
		value, err := change(old)
		if err != nil {
			return "", err
		}
		version, err := c.PutIf(key, value, condition, "")
		if !hasFailed(err) {
			return version, err
		}
		time.Sleep(rand.N(2 * time.Millisecond << min(attempt, 6)))
	}
	return "", errors.New("others write " + key + " all the time")
}

// hasFailed says whether a condition did not hold.
func hasFailed(err error) bool {
	var failure *Failure
	return errors.As(err, &failure) && failure.Status == 412
}

// Create stores the value of a new key; repeating it after ErrUnknown with the same name is no second one.
func (c *Client) Create(key string, value []byte) (version string, err error) {
	name := fmt.Sprintf("Kvorum-Operation: %x", rand.Uint64())
	for range 3 {
		version, err = c.PutIf(key, value, IfAbsent, "", name)
		if !errors.Is(err, ErrUnknown) {
			break
		}
	}
	return version, err
}

// Lock takes a lock and returns its fencing token; hasFailed says of its error whether somebody has it.
func (c *Client) Lock(key, ttl string) (string, error) { return c.PutIf(key, nil, IfAbsent, "ttl="+ttl) }

// ErrFenced says that a later holder of the lock has written.
var ErrFenced = errors.New("the lock was lost")

// FencedPut stores a value under a lock's token, unless a later holder of the lock has written.
func (c *Client) FencedPut(key, token, value string) (string, error) {
	return c.Update(key, func(old []byte) ([]byte, error) {
		if latest, _, _ := strings.Cut(string(old), " "); latest > token {
			return nil, ErrFenced
		}
		return []byte(token + " " + value), nil
	})
}

// Entry is a record of a range.
type Entry struct {
	Key, Value []byte
}

type row struct {
	Key         *string
	KeyBase64   []byte `json:"key_base64"` // encoding/json decodes base64 by itself
	Value       *string
	ValueBase64 []byte `json:"value_base64"`
}

// Range yields entries in the order of the keys' bytes, as they come. A cut range ends with an error; what came is
// right.
func (c *Client) Range(start, end string, options ...string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		query := strings.Join(append([]string{"start=" + escape(start), "end=" + escape(end)}, options...), "&")
		request, err := newRequest("GET", c.Nodes[0]+"/v0/entities?"+query, nil)
		if err != nil {
			yield(Entry{}, err)
			return
		}
		request.Header.Set("Accept", "application/x-ndjson, application/json")
		streaming := http.Client{Transport: c.HTTP.Transport} // without a time-out for the whole
		answer, err := streaming.Do(request)
		if err != nil {
			yield(Entry{}, err)
			return
		}
		defer answer.Body.Close()
		if answer.StatusCode != 200 {
			content, _ := io.ReadAll(answer.Body)
			yield(Entry{}, failureOf(answer.StatusCode, content))
			return
		}
		// Not bufio.Scanner, whose lines end at 64 KiB.
		for decoder := json.NewDecoder(answer.Body); ; {
			var r row
			if err := decoder.Decode(&r); err == io.EOF {
				return
			} else if err != nil {
				yield(Entry{}, err)
				return
			}
			entry := Entry{r.KeyBase64, r.ValueBase64}
			if r.Key != nil {
				entry.Key = []byte(*r.Key)
			}
			if r.Value != nil {
				entry.Value = []byte(*r.Value)
			}
			if !yield(entry, nil) {
				return
			}
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(holds bool, what string, seen any) {
	if !holds {
		panic(fmt.Sprintf("%s: %v", what, seen))
	}
}

func conditions(c *Client) {
	// An optimistic update, and a counter.
	for _, name := range []string{"ann ", "bob "} {
		must(c.Update("recipe/names", func(old []byte) ([]byte, error) { return append(old, name...), nil }))
	}
	check(string(must(c.Get("recipe/names"))) == "ann bob ", "update", nil)
	must(c.Add("recipe/hits", 5))
	sum := must(c.Add("recipe/hits", -2))
	check(sum == 3, "add", sum)
	// A create that can be repeated.
	must(c.Create("recipe/order", []byte("1")))
	_, err := c.Create("recipe/order", []byte("2"))
	check(hasFailed(err), "it was there", err)
	// A lock. Its first holder sleeps until it is another's: without the token it would write over the second one's work.
	first := must(c.Lock("recipe/lock", "300ms"))
	_, err = c.Lock("recipe/lock", "300ms")
	check(hasFailed(err), "locked", err)
	time.Sleep(400 * time.Millisecond)
	second := must(c.Lock("recipe/lock", "30s"))
	must(c.FencedPut("recipe/work", second, "of the second"))
	_, err = c.FencedPut("recipe/work", first, "too late")
	check(err == ErrFenced, "the first holder had lost the lock", err)
	_, _, err = c.ask("DELETE", "id=recipe/lock", nil, IfVersion(second))
	check(err == nil, "unlock", err)
	for _, key := range []string{"names", "hits", "order", "work"} {
		must(c.Delete("recipe/" + key))
	}
}

func tour(c *Client) {
	version := must(c.Put("recipe/greeting", []byte("hello")))
	check(string(must(c.Get("recipe/greeting"))) == "hello", "get", nil)
	check(must(c.Put("recipe/greeting", []byte("hello again"), "replicas=3/3")) > version, "versions only grow", version)

	odd := "recipe/\x00\xff +%&=/#\n" // keys are bytes
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	must(c.Put(odd, all))
	check(bytes.Equal(must(c.Get(odd)), all), "odd key", nil)
	must(c.Put("recipe/empty", nil))
	check(len(must(c.Get("recipe/empty"))) == 0, "empty value", nil)

	must(c.Put("recipe/session", []byte("token"), "ttl=300ms"))
	check(string(must(c.Get("recipe/session"))) == "token", "before its ttl", nil)
	time.Sleep(400 * time.Millisecond)
	_, err := c.Get("recipe/session")
	check(err == ErrNotFound, "gone after its ttl", err)

	var keys []string
	for entry, err := range c.Range("recipe/", "recipe0") {
		must(entry, err)
		keys = append(keys, string(entry.Key))
		check(string(entry.Key) != odd || bytes.Equal(entry.Value, all), "value in a range", entry.Value)
	}
	expect := []string{odd, "recipe/empty", "recipe/greeting"}
	check(fmt.Sprintf("%q", keys) == fmt.Sprintf("%q", expect), "range", keys)
	count := 0
	for entry, err := range c.Range("recipe/", "recipe0", "limit=2") {
		must(entry, err)
		count++
	}
	check(count == 2, "limit", count)

	for _, key := range keys {
		must(c.Delete(key))
	}
	_, err = c.Get("recipe/greeting")
	check(err == ErrNotFound, "deleted", err)

	conditions(c)
	_, err = c.Put("recipe/x", nil, "replicas=2/1")
	var failure *Failure
	check(errors.As(err, &failure) && failure.Status == 400 && failure.Code == "bad_parameter", "no quorum", err)
	// A node that is away is passed over.
	away := &Client{Nodes: append([]string{"http://127.0.0.1:1"}, c.Nodes...), HTTP: c.HTTP}
	must(away.Put("recipe/x", []byte("x")))
	must(c.Delete("recipe/x"))
	fmt.Println("go with net/http: put, get, delete, ttl, range, failures, conditions: ok")
}

func main() {
	arguments := os.Args[1:]
	client := &Client{HTTP: http.Client{Timeout: 5 * time.Second}}
	if arguments[0] != "range" {
		client.Nodes = arguments
		tour(client)
		return
	}
	client.Nodes = arguments[3:]
	for entry, err := range client.Range(arguments[1], arguments[2]) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Printf("%q %d\n", entry.Key, len(entry.Value))
	}
}
