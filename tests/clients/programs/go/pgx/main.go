// pgx version 4, without database/sql.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

var (
	connection *pgx.Conn
	all        = context.Background()
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func told(rows pgx.Rows, err error) string {
	check(err)
	defer rows.Close()
	var told []string
	for rows.Next() {
		values, err := rows.Values()
		check(err)
		told = append(told, fmt.Sprint(values))
	}
	check(rows.Err())
	return strings.Join(told, " / ")
}

func ask(text string, args ...interface{}) string {
	return told(connection.Query(all, text, args...))
}

func state(err error) string {
	var failure *pgconn.PgError
	if errors.As(err, &failure) {
		return failure.Code
	}
	return fmt.Sprint(err)
}

func fails(text string) string {
	_, err := connection.Exec(all, text)
	return state(err)
}

var tasks = map[string]func() interface{}{
	"connect": func() interface{} {
		return ask("SELECT version(), current_user") + connection.PgConn().ParameterStatus("server_version")
	},
	"introspect": func() interface{} {
		described, err := connection.Prepare(all, "", os.Getenv("BIG"))
		check(err)
		found := ask("SELECT table_schema::text, table_name::text, column_name::text FROM information_schema.columns"+
			" WHERE table_schema = ANY($1) ORDER BY 1, 2, ordinal_position", []string{"shop", "fleet"})
		for _, field := range described.Fields {
			found += fmt.Sprintf(" %s:%d", field.Name, field.DataTypeOID)
		}
		return found
	},
	"parameters": func() interface{} {
		days, err := strconv.Atoi(os.Getenv("DAYS"))
		check(err)
		first := ask(os.Getenv("JOIN"), os.Getenv("CITY"), days)
		simple := ask(os.Getenv("JOIN"), pgx.QuerySimpleProtocol(true), os.Getenv("CITY"), days)
		batch := &pgx.Batch{}
		for i := 0; i < 3; i++ {
			batch.Queue(os.Getenv("JOIN"), os.Getenv("CITY"), days)
		}
		results := connection.SendBatch(all, batch)
		for i := 0; i < 3; i++ {
			if told(results.Query()) != first {
				panic("the batch differs")
			}
		}
		check(results.Close())
		return first + " " + fmt.Sprint(len(simple))
	},
	"big": func() interface{} {
		rows, err := connection.Query(all, os.Getenv("BIG"))
		check(err)
		defer rows.Close()
		count := 0
		for rows.Next() {
			count++
		}
		check(rows.Err())
		return count
	},
	"errors": func() interface{} {
		seen := []string{fails(os.Getenv("FAILS")), ask(os.Getenv("COUNT"))}
		transaction, err := connection.Begin(all)
		check(err)
		seen = append(seen, ask(os.Getenv("COUNT")), fails(os.Getenv("FAILS")), fails(os.Getenv("COUNT")))
		check(transaction.Rollback(all))
		return append(seen, ask(os.Getenv("COUNT")))
	},
	"cancel": func() interface{} {
		go func() {
			time.Sleep(1500 * time.Millisecond)
			check(connection.PgConn().CancelRequest(all))
		}()
		return fails(os.Getenv("SLOW")) + " " + ask(os.Getenv("COUNT"))
	},
}

func main() {
	var err error
	connection, err = pgx.Connect(all, "sslmode=disable")
	check(err)
	for _, name := range os.Args[1:] {
		func() {
			defer func() {
				if failure := recover(); failure != nil {
					fmt.Printf("%s\t!%v\n", name, failure)
				}
			}()
			fmt.Printf("%s\t%v\n", name, tasks[name]())
		}()
	}
}
