package etcd

import (
	"encoding/binary"
	"errors"
)

// message is an encoded protocol buffer. Its methods append a field; fields of value zero are left out, as in proto3.
//
// google.golang.org/protobuf/encoding/protowire would do the same, but hashes the program at each start: 0.1 ms of a
// plugin's 2.
type message []byte

// The types of fields: https://protobuf.dev/programming-guides/encoding/
const (
	varintType = 0
	fixed64    = 1
	bytesType  = 2
	fixed32    = 5
)

func (m message) text(field int, v string) message {
	if v == "" {
		return m
	}
	return append(m.tag(field, bytesType).varint(uint64(len(v))), v...)
}

func (m message) number(field int, v int64) message {
	if v == 0 {
		return m
	}
	return m.tag(field, varintType).varint(uint64(v))
}

func (m message) flag(field int, v bool) message {
	if !v {
		return m
	}
	return m.number(field, 1)
}

// sub appends a message, also an empty one: the presence of a field selects the member of a union.
func (m message) sub(field int, v message) message {
	return append(m.tag(field, bytesType).varint(uint64(len(v))), v...)
}

func (m message) tag(field, kind int) message { return m.varint(uint64(field<<3 | kind)) }
func (m message) varint(v uint64) message     { return binary.AppendUvarint(m, v) }

// The field numbers below are from etcd's rpc.proto and kv.proto.

// rangeRequest asks for the keys from key to before end, or for key alone if there is no end.
type rangeRequest struct {
	key, end     string
	serializable bool // any member may answer, perhaps with stale data
	keysOnly     bool
	countOnly    bool
}

func (r rangeRequest) encode() message {
	return message{}.text(1, r.key).text(2, r.end).flag(7, r.serializable).flag(8, r.keysOnly).flag(9, r.countOnly)
}

// guard compares the revision in which a key was last changed; 0 means that the key does not exist.
type guard struct {
	key      string
	revision int64
}

// txnRequest does one thing to a key if the guard holds, and else counts how often the key exists.
type txnRequest struct {
	guard guard
	put   bool // else the key is deleted
	value []byte
}

const (
	compareVersion     = 0
	compareModRevision = 2
)

func (t txnRequest) encode() message {
	// The comparison is "equal", which is 0.
	cmp := message{}.number(2, compareModRevision).text(3, t.guard.key)
	if t.guard.revision == 0 {
		// An explicit 0: the union's field must be there.
		cmp = message{}.number(2, compareVersion).text(3, t.guard.key)
		cmp = cmp.tag(4, varintType).varint(0)
	} else {
		cmp = cmp.number(6, t.guard.revision)
	}
	var op message
	if t.put {
		op = op.sub(2, message{}.text(1, t.guard.key).text(2, string(t.value)))
	} else {
		op = op.sub(3, message{}.text(1, t.guard.key))
	}
	otherwise := message{}.sub(1, rangeRequest{key: t.guard.key, countOnly: true}.encode())
	return message{}.sub(1, cmp).sub(2, op).sub(3, otherwise)
}

// keyValue is one key that was read.
type keyValue struct {
	key      string
	revision int64 // in which it was last changed
	value    []byte
}

// rangeResponse is the answer to a rangeRequest.
type rangeResponse struct {
	revision int64 // of the datastore
	kvs      []keyValue
	count    int64
}

// txnResponse is the answer to a txnRequest.
type txnResponse struct {
	revision  int64 // of the datastore, after the transaction
	succeeded bool
	existed   bool // if it did not succeed
}

func decodeRange(data []byte) (rangeResponse, error) {
	var r rangeResponse
	err := fields(data, func(field int, v uint64, sub []byte) error {
		switch field {
		case 1:
			return decodeHeader(sub, &r.revision)
		case 2:
			kv, err := decodeKeyValue(sub)
			r.kvs = append(r.kvs, kv)
			return err
		case 4:
			r.count = int64(v)
		}
		return nil
	})
	return r, err
}

// decodeHeader reads the datastore's revision in the header of an answer.
func decodeHeader(data []byte, revision *int64) error {
	return fields(data, func(field int, v uint64, _ []byte) error {
		if field == 3 {
			*revision = int64(v)
		}
		return nil
	})
}

func decodeKeyValue(data []byte) (keyValue, error) {
	var kv keyValue
	err := fields(data, func(field int, v uint64, sub []byte) error {
		switch field {
		case 1:
			kv.key = string(sub)
		case 3:
			kv.revision = int64(v)
		case 5:
			kv.value = sub
		}
		return nil
	})
	return kv, err
}

func decodeTxn(data []byte) (txnResponse, error) {
	var t txnResponse
	err := fields(data, func(field int, v uint64, sub []byte) error {
		switch field {
		case 1:
			return decodeHeader(sub, &t.revision)
		case 2:
			t.succeeded = v != 0
		case 3:
			return fields(sub, func(field int, _ uint64, sub []byte) error {
				if field != 1 {
					return nil
				}
				r, err := decodeRange(sub)
				t.existed = r.count > 0
				return err
			})
		}
		return nil
	})
	return t, err
}

// authenticateRequest asks for a token.
func authenticateRequest(user, password string) message {
	return message{}.text(1, user).text(2, password)
}

func decodeToken(data []byte) (token string, err error) {
	err = fields(data, func(field int, _ uint64, sub []byte) error {
		if field == 2 {
			token = string(sub)
		}
		return nil
	})
	return token, err
}

var errMalformed = errors.New("malformed protocol buffer")

// fields visits the numbers and the strings, bytes and messages of a message; fields of other types are passed over.
func fields(data []byte, visit func(field int, v uint64, sub []byte) error) error {
	for len(data) > 0 {
		tag, n := binary.Uvarint(data)
		if n <= 0 {
			return errMalformed
		}
		data = data[n:]
		var v uint64
		var sub []byte
		switch tag & 7 {
		case varintType:
			v, n = binary.Uvarint(data)
		case bytesType:
			sub, n = chunk(data)
		case fixed64:
			n = 8
		case fixed32:
			n = 4
		default:
			n = 0
		}
		if n <= 0 || n > len(data) {
			return errMalformed
		}
		data = data[n:]
		if kind := tag & 7; kind == fixed64 || kind == fixed32 {
			continue
		}
		if err := visit(int(tag>>3), v, sub); err != nil {
			return err
		}
	}
	return nil
}

// chunk returns bytes prefixed by their length, and the size of both together; 0 if data has fewer.
func chunk(data []byte) (content []byte, n int) {
	size, n := binary.Uvarint(data)
	if n <= 0 || size > uint64(len(data)-n) {
		return nil, 0
	}
	end := n + int(size)
	return data[n:end], end
}
