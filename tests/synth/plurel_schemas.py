"""Schemas after well-known shapes, each in another style; `FAITHFUL` can be filled, `REFUSED` name why they cannot."""

SHOP = """
-- A shop, as it comes out of pg_dump: types first, keys added at the end.
SET client_encoding = 'UTF8';
CREATE TYPE order_status AS ENUM ('placed', 'paid', 'shipped', 'returned');

CREATE TABLE public.customers (
    customer_id bigint NOT NULL,
    segment character varying(20) NOT NULL,
    loyalty_points integer,
    credit numeric(10,2) DEFAULT 0 NOT NULL,
    is_active boolean NOT NULL,
    CONSTRAINT customers_segment_check CHECK (segment IN ('private', 'business', 'public'))
);
CREATE TABLE public.products (
    product_id bigint NOT NULL,
    price double precision NOT NULL,
    weight real
);
CREATE TABLE public.orders (
    order_id bigint NOT NULL,
    customer_id bigint NOT NULL,
    status order_status,
    total double precision
);
CREATE TABLE public.order_lines (
    line_id bigint NOT NULL,
    order_id bigint NOT NULL,
    product_id bigint NOT NULL,
    quantity smallint NOT NULL,
    discount numeric(4,3)
);
ALTER TABLE ONLY public.customers ADD CONSTRAINT customers_pkey PRIMARY KEY (customer_id);
ALTER TABLE ONLY public.products ADD CONSTRAINT products_pkey PRIMARY KEY (product_id);
ALTER TABLE ONLY public.orders ADD CONSTRAINT orders_pkey PRIMARY KEY (order_id);
ALTER TABLE ONLY public.order_lines ADD CONSTRAINT order_lines_pkey PRIMARY KEY (line_id);
ALTER TABLE ONLY public.orders
    ADD CONSTRAINT orders_customer_fk FOREIGN KEY (customer_id) REFERENCES public.customers(customer_id);
ALTER TABLE ONLY public.order_lines
    ADD CONSTRAINT lines_order_fk FOREIGN KEY (order_id) REFERENCES public.orders(order_id) ON DELETE CASCADE;
ALTER TABLE ONLY public.order_lines
    ADD CONSTRAINT lines_product_fk FOREIGN KEY (product_id) REFERENCES public.products(product_id);
CREATE INDEX orders_by_customer ON public.orders (customer_id);
"""

HOSPITAL = """
# A hospital in MySQL's style.
DROP TABLE IF EXISTS `treatment`;
CREATE TABLE `ward` (
  `id` int unsigned NOT NULL AUTO_INCREMENT,
  `beds` int NOT NULL,
  `kind` enum('surgical','internal','intensive') NOT NULL DEFAULT 'internal',
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE TABLE `patient` (
  `id` int unsigned NOT NULL AUTO_INCREMENT,
  `sex` enum('f','m','x') DEFAULT NULL,
  `height_cm` float DEFAULT NULL,
  `insured` tinyint(1) NOT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB;

CREATE TABLE `treatment` (
  `id` int unsigned NOT NULL AUTO_INCREMENT,
  `patient_id` int unsigned NOT NULL,
  `ward_id` int unsigned NOT NULL,
  `cost` decimal(12,2) NOT NULL,
  `severity` double DEFAULT NULL,
  PRIMARY KEY (`id`),
  KEY `by_patient` (`patient_id`),
  CONSTRAINT `fk_patient` FOREIGN KEY (`patient_id`) REFERENCES `patient` (`id`) ON DELETE CASCADE,
  CONSTRAINT `fk_ward` FOREIGN KEY (`ward_id`) REFERENCES `ward` (`id`)
) ENGINE=InnoDB;
"""

UNIVERSITY = """
-- A university in SQLite's style, keys written beside the columns, the child before its parents.
PRAGMA foreign_keys = ON;
create table if not exists enrolment (
    id integer primary key autoincrement,
    student integer not null references student (id),
    course integer not null references course (id),
    grade text check (grade in ('A', 'B', 'C', 'D', 'F')),
    hours real
);
create table if not exists student (id integer primary key, age integer, fees real, full_time boolean not null);
create table if not exists course (
    id integer primary key,
    "group" text not null check ("group" in ('science', 'arts')),
    credits int not null,
    lecturer integer references lecturer
);
create table if not exists lecturer (id integer primary key, salary numeric, tenured boolean);
"""

FORUM = """
/* A forum for SQL Server: brackets, IDENTITY, two keys to one table. */
CREATE TABLE [dbo].[Users] (
    [UserId] INT IDENTITY(1,1) NOT NULL CONSTRAINT [PK_Users] PRIMARY KEY,
    [Reputation] INT NOT NULL,
    [IsModerator] BIT NOT NULL
);
CREATE TABLE [dbo].[Messages] (
    [MessageId] BIGINT IDENTITY(1,1) NOT NULL,
    [SenderId] INT NOT NULL,
    [ReceiverId] INT NOT NULL,
    [Folder] VARCHAR(10) NOT NULL CHECK ([Folder] IN ('inbox', 'spam')),
    [Score] FLOAT NULL,
    CONSTRAINT [PK_Messages] PRIMARY KEY ([MessageId]),
    CONSTRAINT [FK_Sender] FOREIGN KEY ([SenderId]) REFERENCES [dbo].[Users] ([UserId]),
    CONSTRAINT [FK_Receiver] FOREIGN KEY ([ReceiverId]) REFERENCES [dbo].[Users] ([UserId])
);
"""

TELEMETRY = """
CREATE TABLE sensor (sensor_id SERIAL PRIMARY KEY, gain DOUBLE PRECISION NOT NULL, revision SMALLINT);
CREATE TABLE reading (
    sensor_id INTEGER NOT NULL REFERENCES sensor,
    value DOUBLE PRECISION,
    quality INTEGER NOT NULL CHECK (quality IN (0, 1, 2, 9))
);
"""

EMPLOYEES = """
CREATE TABLE department (id INTEGER PRIMARY KEY, budget REAL);
CREATE TABLE employee (
    id INTEGER PRIMARY KEY,
    department INTEGER NOT NULL REFERENCES department (id),
    manager INTEGER REFERENCES employee (id),
    salary REAL
);
"""

ENROLMENT_WITH_COMPOSITE_KEY = """
CREATE TABLE student (id INTEGER PRIMARY KEY, age INTEGER);
CREATE TABLE course (id INTEGER PRIMARY KEY, credits INTEGER);
CREATE TABLE enrolment (
    student_id INTEGER NOT NULL REFERENCES student (id),
    course_id INTEGER NOT NULL REFERENCES course (id),
    grade REAL,
    PRIMARY KEY (student_id, course_id)
);
"""

BLOG = """
CREATE TABLE author (id INTEGER PRIMARY KEY, rating REAL);
CREATE TABLE post (
    id INTEGER PRIMARY KEY,
    author_id INTEGER NOT NULL REFERENCES author (id),
    title VARCHAR(200) NOT NULL,
    published_at TIMESTAMP
);
"""

CYCLE = """
CREATE TABLE a (id INTEGER PRIMARY KEY, b_id INTEGER REFERENCES b (id), x REAL);
CREATE TABLE b (id INTEGER PRIMARY KEY, a_id INTEGER REFERENCES a (id), y REAL);
"""

FAITHFUL = {
    "shop": SHOP,
    "hospital": HOSPITAL,
    "university": UNIVERSITY,
    "forum": FORUM,
    "telemetry": TELEMETRY,
}
REFUSED = {
    "employees": EMPLOYEES,
    "composite": ENROLMENT_WITH_COMPOSITE_KEY,
    "blog": BLOG,
    "cycle": CYCLE,
}
