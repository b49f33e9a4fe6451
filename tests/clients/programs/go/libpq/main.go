// lib/pq through database/sql.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"
)

var db *sql.DB

func told(rows *sql.Rows) string {
	defer rows.Close()
	columns, err := rows.Columns()
	check(err)
	var told []string
	for rows.Next() {
		values := make([]interface{}, len(columns))
		into := make([]interface{}, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		check(rows.Scan(into...))
		told = append(told, fmt.Sprint(values))
	}
	check(rows.Err())
	return strings.Join(told, " / ")
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

type queryer interface {
	Query(query string, args ...interface{}) (*sql.Rows, error)
}

func ask(on queryer, text string, args ...interface{}) string {
	rows, err := on.Query(text, args...)
	check(err)
	return told(rows)
}

func state(err error) string {
	if failure, ok := err.(*pq.Error); ok {
		return string(failure.Code)
	}
	return fmt.Sprint(err)
}

func fails(on queryer, text string) string {
	rows, err := on.Query(text)
	if err == nil {
		for rows.Next() {
		}
		err = rows.Err()
	}
	return state(err)
}

func summed(rows *sql.Rows) string {
	defer rows.Close()
	count, deliveries := 0, int64(0)
	columns, err := rows.Columns()
	check(err)
	for rows.Next() {
		into := make([]interface{}, len(columns))
		var id int64
		for i, name := range columns {
			if name == "delivery_id" {
				into[i] = &id
			} else {
				into[i] = new(interface{})
			}
		}
		check(rows.Scan(into...))
		count++
		deliveries += id
	}
	check(rows.Err())
	return fmt.Sprintf("%d rows, %d", count, deliveries)
}

var tasks = map[string]func() interface{}{
	"connect": func() interface{} { return ask(db, "SELECT version(), current_user") },
	"introspect": func() interface{} {
		rows, err := db.Query(os.Getenv("BIG") + " LIMIT 0")
		check(err)
		types, err := rows.ColumnTypes()
		check(err)
		check(rows.Close())
		found := ask(db, "SELECT table_schema, table_name, column_name, udt_name FROM information_schema.columns"+
			" WHERE table_schema = ANY($1) ORDER BY 1, 2, ordinal_position", pq.Array([]string{"shop", "fleet"}))
		for _, each := range types {
			found += " " + each.Name() + ":" + each.DatabaseTypeName()
		}
		return found
	},
	"parameters": func() interface{} {
		days, err := strconv.Atoi(os.Getenv("DAYS"))
		check(err)
		prepared, err := db.Prepare(os.Getenv("JOIN"))
		check(err)
		defer prepared.Close()
		var all []string
		for i := 0; i < 2; i++ {
			rows, err := prepared.Query(os.Getenv("CITY"), days)
			check(err)
			all = append(all, told(rows))
		}
		all = append(all, ask(db, os.Getenv("JOIN"), os.Getenv("CITY"), days))
		if all[0] != all[1] || all[0] != all[2] {
			panic("the executions differ")
		}
		return all[0]
	},
	"big": func() interface{} {
		rows, err := db.Query(os.Getenv("BIG"))
		check(err)
		return summed(rows)
	},
	"errors": func() interface{} {
		seen := []string{fails(db, os.Getenv("FAILS")), ask(db, os.Getenv("COUNT"))}
		transaction, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
		check(err)
		seen = append(seen, ask(transaction, os.Getenv("COUNT")), fails(transaction, os.Getenv("FAILS")),
			fails(transaction, os.Getenv("COUNT")))
		check(transaction.Rollback())
		// Several statements in one string, as in a panel of a dashboard.
		return append(seen, ask(db, "SET application_name TO 'x'; "+os.Getenv("COUNT")))
	},
	"cancel": func() interface{} {
		limited, stop := context.WithTimeout(context.Background(), 1500*time.Millisecond)
		defer stop()
		rows, err := db.QueryContext(limited, os.Getenv("SLOW"))
		if err == nil {
			for rows.Next() {
			}
			err = rows.Err()
		}
		return state(err) + " " + ask(db, os.Getenv("COUNT"))
	},
}

func main() {
	var err error
	db, err = sql.Open("postgres", "sslmode=disable")
	check(err)
	db.SetMaxOpenConns(1)
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
