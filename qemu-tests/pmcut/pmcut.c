// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A plug-in of QEMU's emulator (TCG) that cuts the power of persistent memory.
 *
 * Emulated memory keeps every store, so a guest that forgets a write-back loses nothing when QEMU
 * is killed. The plug-in keeps a second file, `durable`, which has only the lines that the guest has
 * written back and fenced, and a log of its changes in program order. A prefix of the log has the
 * bytes that a power failure at that moment leaves.
 *
 * Arguments, as `-plugin FILE,NAME=VALUE,...`:
 *   base, len  physical addresses of the memory
 *   live       the memory's file, which QEMU maps too
 *   durable    the second file, of the same length
 *   log        the log (lines.h)
 *   log_len    maximum length of the log
 *   channel    offset of a page in the memory; a store to the last byte of one of its lines logs
 *              that line as a message (`mark`). The page is never durable.
 *   device     1: the memory is a virtio-pmem device's, and only the device makes stores durable: all
 *              of them, when QEMU calls fsync() for `live`. Write-backs, fences and evictions do
 *              nothing. The plug-in has to be preloaded, so that its fsync() is called.
 *   eadr       1: the caches are persistent, a store is durable at once
 *   evict      N: one of N stores makes its line durable at once, as a full cache does; 0: none
 *   drain      microseconds that a fence waits, after the first mark, before its lines are durable
 *   stop       K: SIGKILL after the Kth fence behind the first mark; 0: never. The fsync() of a
 *              device counts as a fence, here and for `drain`.
 *   kill       SIGKILL this many microseconds after the first mark; 0: never
 *
 * The guest's kernel runs with `nokaslr`, so that an address in its direct map tells the physical
 * one. Debian does not package QEMU's header, so its functions are declared here (API version 4).
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "decode.h"
#include "lines.h"

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;

typedef struct {
	char *data;
	unsigned int len;
} GArray;

typedef struct {
	uint8_t *data;
	unsigned int len;
} GByteArray;

typedef struct {
	void *handle;
	const char *name;
	const char *feature;
} qemu_plugin_reg_descriptor;

enum { QEMU_PLUGIN_CB_NO_REGS = 0, QEMU_PLUGIN_CB_R_REGS = 1 };
enum { QEMU_PLUGIN_MEM_W = 2 };

typedef void (*vcpu_cb)(qemu_plugin_id_t, unsigned int);
typedef void (*tb_cb)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*insn_cb)(unsigned int, void *);
typedef void (*mem_cb)(unsigned int, qemu_plugin_meminfo_t, uint64_t, void *);

GArray *qemu_plugin_get_registers(void);
int qemu_plugin_read_register(void *handle, GByteArray *to);
GByteArray *g_byte_array_new(void);
GByteArray *g_byte_array_set_size(GByteArray *array, unsigned int len);
void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t id, vcpu_cb cb);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, tb_cb cb);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *to, size_t len);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, insn_cb cb, int flags,
					    void *data);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, mem_cb cb, int flags, int rw,
				      void *data);
unsigned int qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t info);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t info, uint64_t vaddr);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *hwaddr);

EXPORT int qemu_plugin_version = 4;
EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv);
EXPORT int fsync(int fd);

#define CPUS 16
#define PAGE 4096
/* The kernel's direct map without KASLR and with four levels of page tables. */
#define DIRECT_MAP 0xffff888000000000ULL
#define DIRECT_MAP_LEN (1ULL << 46)

struct cpu {
	struct pending pending;
	/* Registers in the order of the encoding. */
	void *registers[16];
	GByteArray *value;
	uint32_t random;
};

/* A write-back instruction. */
struct site {
	struct decoded decoded;
	/* Address of the next instruction, for operands relative to it. */
	uint64_t next;
};

static const char *const names[16] = {
	"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
	"r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
};

static struct memory memory;
static struct cpu cpus[CPUS];
/* No page is the channel until an argument says so. */
static uint64_t channel = UINT64_MAX;
static uint64_t base, len, log_len, evict, drain, stop, kill_after;
static const char *live, *durable, *logged;
/* The memory is a virtio-pmem device's; its file. */
static bool device;
static struct stat device_file;
/* Set at the first mark. */
static bool begun;
static uint64_t fences_before;

static void count(uint64_t *counter)
{
	__atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
}

static void die(void)
{
	kill(getpid(), SIGKILL);
}

static void *die_later(void *unused)
{
	(void)unused;
	usleep(kill_after);
	die();
	return NULL;
}

static void begin(void)
{
	pthread_t thread;

	fences_before = memory.log->records[REC_FENCE];
	__atomic_store_n(&begun, true, __ATOMIC_RELEASE);
	if (kill_after && pthread_create(&thread, NULL, die_later, NULL))
		abort();
}

/* Makes pending lines durable. */
static void settle_all(struct pending *pending)
{
	bool now = __atomic_load_n(&begun, __ATOMIC_ACQUIRE);
	uint64_t number;

	if (!pending->count)
		return;
	if (drain && now)
		usleep(drain);
	number = fence(&memory, pending);
	if (stop && now && number >= fences_before + stop)
		die();
}

static void on_fence(unsigned int vcpu, void *unused)
{
	(void)unused;
	settle_all(&cpus[vcpu].pending);
}

/* Calls fsync(), which a thread of QEMU does for each flush of a virtio-pmem device. */
int fsync(int fd)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct pending pending;
	struct stat file;

	if (device && !fstat(fd, &file) && file.st_dev == device_file.st_dev &&
	    file.st_ino == device_file.st_ino) {
		pthread_mutex_lock(&lock);
		write_all_back(&memory, &pending, channel, PAGE);
		settle_all(&pending);
		pthread_mutex_unlock(&lock);
	}
	return syscall(SYS_fsync, fd);
}

static uint64_t read_register(struct cpu *cpu, int number)
{
	uint64_t value = 0;

	g_byte_array_set_size(cpu->value, 0);
	qemu_plugin_read_register(cpu->registers[number], cpu->value);
	memcpy(&value, cpu->value->data, sizeof(value));
	return value;
}

static void on_write_back(unsigned int vcpu, void *data)
{
	const struct site *site = data;
	const struct decoded *d = &site->decoded;
	struct cpu *cpu = &cpus[vcpu];
	uint64_t address = d->disp, offset;

	if (d->base == RIP)
		address += site->next;
	else if (d->base != NO_REG)
		address += read_register(cpu, d->base);
	if (d->index != NO_REG)
		address += read_register(cpu, d->index) << d->scale;
	count(&memory.log->write_backs);
	if (address - DIRECT_MAP >= DIRECT_MAP_LEN) {
		/* While the device is set up, the kernel uses other mappings too. */
		if (__atomic_load_n(&begun, __ATOMIC_ACQUIRE))
			count(&memory.log->unknown);
		return;
	}
	offset = address - DIRECT_MAP - base;
	if (offset < len && offset - channel >= PAGE)
		write_back(&memory, &cpu->pending, offset & ~(LINE - 1ULL));
}

/* Returns whether the cache writes a line back on its own now. */
static bool evicts(struct cpu *cpu)
{
	cpu->random = cpu->random * 1664525 + 1013904223;
	return evict && (cpu->random >> 8) % evict == 0;
}

static void on_channel(uint64_t offset, uint64_t size)
{
	if (offset % LINE + size != LINE)
		return;
	if (mark(&memory, offset & ~(LINE - 1ULL)) == 1)
		begin();
}

static void on_store(unsigned int vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *nt)
{
	const struct qemu_plugin_hwaddr *hwaddr = qemu_plugin_get_hwaddr(info, vaddr);
	struct cpu *cpu = &cpus[vcpu];
	uint64_t offset, size;

	if (!hwaddr)
		return;
	offset = qemu_plugin_hwaddr_phys_addr(hwaddr) - base;
	if (offset >= len)
		return;
	size = 1ULL << qemu_plugin_mem_size_shift(info);
	if (offset - channel < PAGE) {
		on_channel(offset, size);
		return;
	}
	if (device)
		return;
	count(nt ? &memory.log->nt_stores : &memory.log->stores);
	for (uint64_t line = offset & ~(LINE - 1ULL); line < offset + size; line += LINE) {
		store(&memory, &cpu->pending, line, nt);
		if (!nt && !memory.eadr && evicts(cpu))
			write_through(&memory, REC_EVICT, line);
	}
}

static void on_insn(struct qemu_plugin_insn *insn)
{
	uint8_t bytes[INSN_MAX] = { 0 };
	size_t size = qemu_plugin_insn_size(insn);
	struct decoded decoded;
	struct site *site;
	void *nt;

	qemu_plugin_insn_data(insn, bytes, size < INSN_MAX ? size : INSN_MAX);
	decoded = decode(bytes, size);
	nt = decoded.kind == NT_STORE ? (void *)1 : NULL;
	qemu_plugin_register_vcpu_mem_cb(insn, on_store, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_W,
					 nt);
	if (device)
		return;
	if (decoded.kind == FENCE) {
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_fence, QEMU_PLUGIN_CB_NO_REGS,
						       NULL);
	} else if (decoded.kind == WRITE_BACK) {
		/* Lives as long as the translated code, which is until the end. */
		site = malloc(sizeof(*site));
		if (!site)
			abort();
		site->decoded = decoded;
		site->next = qemu_plugin_insn_vaddr(insn) + size;
		qemu_plugin_register_vcpu_insn_exec_cb(insn, on_write_back, QEMU_PLUGIN_CB_R_REGS,
						       site);
	}
}

static void on_tb(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++)
		on_insn(qemu_plugin_tb_get_insn(tb, i));
}

static void on_cpu(qemu_plugin_id_t id, unsigned int vcpu)
{
	GArray *all = qemu_plugin_get_registers();
	qemu_plugin_reg_descriptor *registers = (qemu_plugin_reg_descriptor *)all->data;
	struct cpu *cpu;

	(void)id;
	if (vcpu >= CPUS) {
		fprintf(stderr, "pmcut: more than %d processors\n", CPUS);
		exit(1);
	}
	cpu = &cpus[vcpu];
	for (unsigned int i = 0; i < all->len; i++) {
		for (int number = 0; number < 16; number++) {
			if (!strcmp(registers[i].name, names[number]))
				cpu->registers[number] = registers[i].handle;
		}
	}
	cpu->value = g_byte_array_new();
	cpu->random = vcpu + 1;
}

/* Maps a file, which is created with the length if it does not exist. */
static void *map(const char *path, uint64_t size)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	void *at = MAP_FAILED;

	if (fd >= 0 && !ftruncate(fd, size))
		at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		perror(path);
		exit(1);
	}
	return at;
}

static bool read_argument(const char *name, const char *value)
{
	static const struct {
		const char *name;
		uint64_t *to;
	} numbers[] = {
		{ "base", &base }, { "len", &len }, { "log_len", &log_len },
		{ "channel", &channel }, { "evict", &evict }, { "drain", &drain },
		{ "stop", &stop }, { "kill", &kill_after },
	};
	static const struct {
		const char *name;
		const char **to;
	} files[] = { { "live", &live }, { "durable", &durable }, { "log", &logged } };

	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		if (!strcmp(name, numbers[i].name)) {
			*numbers[i].to = strtoull(value, NULL, 0);
			return true;
		}
	}
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		if (!strcmp(name, files[i].name)) {
			*files[i].to = strdup(value);
			return true;
		}
	}
	return false;
}

/* QEMU turns a value of 1 or 0 into a word. */
static bool is_on(const char *value)
{
	return !strcmp(value, "1") || !strcmp(value, "on");
}

int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
	bool eadr = false;

	(void)info;
	for (int i = 0; i < argc; i++) {
		char *value = strchr(argv[i], '=');

		if (!value)
			return -1;
		*value++ = 0;
		if (!strcmp(argv[i], "eadr"))
			eadr = is_on(value);
		else if (!strcmp(argv[i], "device"))
			device = is_on(value);
		else if (!read_argument(argv[i], value))
			return -1;
	}
	if (!len || !live || !durable || !logged || log_len <= LOG_START)
		return -1;
	if (channel == UINT64_MAX)
		channel = len;
	memory_init(&memory, map(live, len), map(durable, len), len, map(logged, log_len),
		    log_len);
	memory.eadr = eadr;
	if (device && stat(live, &device_file))
		return -1;
	qemu_plugin_register_vcpu_init_cb(id, on_cpu);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_tb);
	return 0;
}
