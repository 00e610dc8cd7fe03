package cluster

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// protobuf is a kind that is requested in protobuf: an agent needs a fifth of the CPU of JSON, and the API server half.
type protobuf interface {
	UnmarshalProtobuf(data []byte) error
}

// Reset does nothing: objects are decoded once.
func (o *object[T]) Reset() {}

// Unmarshal reads an object in protobuf.
func (o *object[T]) Unmarshal(data []byte) error {
	p, ok := any(&o.value).(protobuf)
	if !ok {
		return fmt.Errorf("a %T in protobuf", o.value)
	}
	err := p.UnmarshalProtobuf(data)
	o.ended = o.endsList()
	return err
}

// Reset does nothing: lists are decoded once.
func (l *objectList[T]) Reset() {}

// Unmarshal reads a list in protobuf: all kinds' lists have the metadata in field 1 and the objects in field 2.
func (l *objectList[T]) Unmarshal(data []byte) error {
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if data = data[n:]; kind != protowire.BytesType {
			return fmt.Errorf("field %d of a list has type %d", field, kind)
		}
		part, n := protowire.ConsumeBytes(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if err := l.unmarshalField(field, part); err != nil {
			return err
		}
	}
	return nil
}

func (l *objectList[T]) unmarshalField(field protowire.Number, data []byte) error {
	switch field {
	case 1:
		return l.ListMeta.Unmarshal(data)
	case 2:
		o := &object[T]{}
		l.Items = append(l.Items, o)
		return o.Unmarshal(data)
	}
	return nil
}

// only are the numbers of the fields of a message that are read, each with its subfields to read; nil: all.
type only map[protowire.Number]only

// append appends the fields of a message that are read: decoding 10,000 whole objects leaves garbage that fragments the
// agent's memory.
func (o only) append(b, message []byte) ([]byte, error) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeField(message)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		field, rest := message[:n], message[n:]
		message = rest
		switch inner, wanted := o[number]; {
		case wanted && inner != nil && kind == protowire.BytesType:
			_, _, tag := protowire.ConsumeTag(field)
			value, _ := protowire.ConsumeBytes(field[tag:])
			part, err := inner.append(nil, value)
			if err != nil {
				return nil, err
			}
			b = protowire.AppendBytes(append(b, field[:tag]...), part)
		case wanted:
			b = append(b, field...)
		}
	}
	return b, nil
}
