"""Read into pandas through SQLAlchemy: the catalog by reflection, and a cross-owner frame.

Run `make demo` first, or set OAR_DSN to another proxy.
"""

import os

import pandas
import sqlalchemy

DSN = os.environ.get("OAR_DSN", "postgresql://demo:demo@127.0.0.1:6432/oar")

engine = sqlalchemy.create_engine(sqlalchemy.make_url(DSN).set(drivername="postgresql+psycopg"))

# Reflection reads a real PostgreSQL catalog: comments included, hidden columns not.
inspector = sqlalchemy.inspect(engine)
for column in inspector.get_columns("deliveries", schema="logistics"):
    print(f"{column['name']}: {column['type']} - {column['comment']}")

frame = pandas.read_sql(
    sqlalchemy.text(
        """
        SELECT d.pvz_city, p.promo_code, r.refund
        FROM returns.returns AS r
        JOIN logistics.deliveries AS d USING (order_id)
        JOIN marketing.promos AS p USING (order_id)
        WHERE d.courier = :courier
        """
    ),
    engine,
    params={"courier": "Стриж"},
)
print(frame.pivot_table(index="pvz_city", columns="promo_code", values="refund", aggfunc="sum"))
print(f"{len(frame)} rows of three owners")
engine.dispose()
