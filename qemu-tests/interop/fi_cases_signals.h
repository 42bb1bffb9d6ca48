// SPDX-License-Identifier: MIT OR Apache-2.0
/* The case of fi_cases.c for waits that a signal ends. */
#include <signal.h>
#include <sys/time.h>

/* Alarms every 50 ms after which the case fails: a wait goes on although a signal was handled. */
#define ALARMS_MAX 1200

static volatile sig_atomic_t alarms;

static void on_alarm(int number)
{
	static const char text[] = "fi_cases: a signal does not end the wait\n";

	(void)number;
	if (++alarms < ALARMS_MAX)
		return;
	(void)!write(2, text, sizeof(text) - 1);
	_exit(1);
}

/* The handler runs again and again: the first run may precede the wait. */
static void signals(void)
{
	struct itimerval often = { { 0, 50000 }, { 0, 50000 } }, never = { 0 };
	struct sigaction act = { .sa_handler = on_alarm };
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP };
	struct fi_eq_entry entry = { .data = 7 }, got = { 0 };
	struct fi_cq_data_entry done;
	struct fid_cntr *cntr;
	uint32_t kind;
	struct end a;

	open_end(&a, info, 0);
	OK(fi_cntr_open(domain, &attr, &cntr, NULL));
	OK(sigaction(SIGALRM, &act, NULL));
	OK(setitimer(ITIMER_REAL, &often, NULL));
	GIVES(-FI_EAGAIN, fi_cq_sread(a.cq, &done, 1, NULL, -1));
	GIVES(-FI_EAGAIN, fi_cq_sread(a.cq, &done, 1, NULL, 100 * LIMIT_MS));
	GIVES(-FI_EAGAIN, fi_eq_sread(a.eq, &kind, &got, sizeof(got), -1, 0));
	GIVES(-FI_EAGAIN, fi_eq_sread(a.eq, &kind, &got, sizeof(got), 100 * LIMIT_MS, FI_PEEK));
	GIVES(-FI_EINTR, fi_cntr_wait(cntr, 1, -1));
	CHECK(alarms >= 5);
	/* An event that is there is read, whatever signals arrive. */
	for (int i = 0; i < 100; i++) {
		GIVES(sizeof(entry), fi_eq_write(a.eq, FI_NOTIFY, &entry, sizeof(entry), 0));
		GIVES(sizeof(got), fi_eq_sread(a.eq, &kind, &got, sizeof(got), -1, 0));
	}
	OK(setitimer(ITIMER_REAL, &never, NULL));
	act.sa_handler = SIG_DFL;
	OK(sigaction(SIGALRM, &act, NULL));
	OK(fi_cntr_wait(cntr, 0, -1));
	OK(fi_close(&cntr->fid));
	close_end(&a);
}
