"""Tests for bert_tf.data.data_service."""

import os
import socket
import threading

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from bert_tf.data import data_service
from bert_tf.data.data_service import DataService
from bert_tf.data.input_pipeline import PretrainingInput
from bert_tf.errors import UserError
from bert_tf.flags.data import DataServiceConfig
from bert_tf.text.masking import DynamicMasking
from tests.support import ports
from tests.support import record_files

_MASKING = DynamicMasking(
    vocab_size=50, cls_id=48, sep_id=49, mask_id=4, masked_lm_prob=0.4
)
_NUM_BATCHES = 12


@pytest.mark.slow
class DataServiceTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # They run as long as they are referenced.
        cls.servers = []
        cls.addresses = []
        for _ in range(3):
            port, worker_port = ports.free(2)
            config = DataServiceConfig(port, worker_port, "localhost")
            cls.servers.append(data_service.start(config))
            cls.addresses.append(f"grpc://localhost:{port}")

    def setUp(self):
        super().setUp()
        folder = self.create_tempdir().full_path
        paths = [
            record_files.write(
                os.path.join(folder, f"{index}.tfrecord"), range(first, stop)
            )
            for index, (first, stop) in enumerate([(1, 14), (20, 27), (40, 43)])
        ]
        self.source = PretrainingInput(
            paths, 8, 3, 7, 5, _MASKING, files_per_group=2, records_per_block=6
        )

    def service(self, num_services, **attributes):
        # The service keeps what it was given under a token.
        return DataService.find(
            ", ".join(self.addresses[:num_services]),
            token=self.id(),
            **attributes,
        )

    def read(self, service, start, rows=None):
        dataset = self.source.dataset(start, rows, service)
        first, count = service.rows(7)
        self.assertEqual(dataset.element_spec["input_ids"].shape, [count, 8])
        self.assertEqual(dataset.element_spec["example_index"].shape, [count])
        self.assertIn(rows, (None, (first, count)))
        batches = list(dataset.take(_NUM_BATCHES).as_numpy_iterator())
        return {
            name: np.stack([batch[name] for batch in batches])
            for name in batches[0]
        }

    def expected(self, start):
        batches = list(self.source.dataset(start).take(_NUM_BATCHES))
        return {
            name: np.stack([batch[name] for batch in batches])
            for name in batches[0]
        }

    @parameterized.parameters((1, 45), (3, 17))
    def test_stream_equals_the_local_one(self, num_services, start):
        actual = self.read(self.service(num_services), start)
        for name, value in self.expected(start).items():
            self.assertAllEqual(actual[name], value)

    def test_several_trainers_share_each_batch(self):
        # More rows than two trainers need, and a third one without any.
        rows = [(0, 4), (4, 3), (7, 0)]
        found = {}

        def train(trainer):
            service = self.service(
                2, trainer=trainer, num_trainers=3, rows_per_trainer=4
            )
            self.assertEqual(service.rows(7), rows[trainer])
            found[trainer] = self.read(service, 0, rows[trainer])

        threads = [
            threading.Thread(target=train, args=(trainer,), daemon=True)
            for trainer in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = self.expected(0)
        for trainer, (first, count) in enumerate(rows):
            for name, value in expected.items():
                own = value[:, first : first + count]
                self.assertAllEqual(found[trainer][name], own)

    def test_several_data_workers_are_rejected(self):
        (port,) = ports.free(1)
        dispatcher = tf.data.experimental.service.DispatchServer(
            tf.data.experimental.service.DispatcherConfig(port=port)
        )
        config = tf.data.experimental.service.WorkerConfig(f"localhost:{port}")
        workers = [
            tf.data.experimental.service.WorkerServer(config) for _ in range(2)
        ]
        service = DataService.find(f"grpc://localhost:{port}", token="token")
        dataset = self.source.dataset(0, service=service)
        with self.assertRaises(tf.errors.InvalidArgumentError) as caught:
            list(dataset.take(_NUM_BATCHES))
        explained = data_service.explain(caught.exception)
        self.assertIsInstance(explained, UserError)
        self.assertIn("has several data workers", str(explained))
        other = tf.errors.InvalidArgumentError(None, None, "something else")
        self.assertIsNone(data_service.explain(other))
        del workers, dispatcher

    @pytest.mark.thorough
    def test_a_restarted_service_is_explained(self):
        config = DataServiceConfig(*ports.free(2), "localhost")
        servers = data_service.start(config)
        address = f"grpc://localhost:{config.port}"
        service = DataService.find(address, token="token")
        batches = iter(self.source.dataset(0, service=service))
        next(batches)
        for server in reversed(servers):
            server._stop()
        servers = data_service.start(config)
        with self.assertRaises(tf.errors.NotFoundError) as caught:
            while True:
                next(batches)
        explained = data_service.explain(caught.exception)
        self.assertIsInstance(explained, UserError)
        self.assertIn("was restarted", str(explained))
        del servers

    @parameterized.parameters(
        ("localhost:1", "must be grpc://host:port"),
        ("grpc://localhost", "must be grpc://host:port"),
        ("grpc://localhost:1", "No data service answers at grpc://localhost:1"),
        ("grpc://a:1,grpc://a:1", "different machines"),
    )
    def test_invalid_addresses(self, addresses, message):
        with self.assertRaisesRegex(UserError, message):
            DataService.find(addresses, token="token")

    def test_rows_of_another_trainer_are_rejected(self):
        service = DataService(("grpc://nowhere:1",), "token", 1, 2, 4)
        with self.assertRaisesRegex(ValueError, r"\(4, 3\). Received: \(0, 4"):
            self.source.dataset(0, (0, 4), service)

    def test_a_service_may_not_share_ports_with_another(self):
        # TensorFlow's servers would, and batches would come from either.
        port, worker_port, other = ports.free(3)
        servers = data_service.start(
            DataServiceConfig(port, worker_port, "localhost")
        )
        for flags, name in (
            ({"port": port, "worker_port": other}, f"--port={port}"),
            ({"port": worker_port}, f"--port={worker_port}"),
            (
                {"port": other, "worker_port": worker_port},
                f"--worker_port={worker_port}",
            ),
        ):
            with self.assertRaisesRegex(UserError, f"{name} is not available"):
                data_service.start(DataServiceConfig(**flags))
        for server in reversed(servers):
            server._stop()

    def test_error_names_a_port_in_use(self):
        with socket.create_server(("0.0.0.0", 0)) as taken:
            port = taken.getsockname()[1]
            with self.assertRaisesRegex(UserError, f"--port={port}"):
                data_service.start(DataServiceConfig(port))

    @parameterized.parameters(
        ({"port": 0}, "--port must"),
        ({"port": 1, "worker_port": 70000}, "--worker_port must"),
        ({"port": 1, "worker_port": 1}, "must differ"),
    )
    def test_flags_that_do_not_fit(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            DataServiceConfig(**flags)


if __name__ == "__main__":
    tf.test.main()
